"""Shared by all tests: where the public usage logs are, and hypothesis limits."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

USAGE = Path(__file__).resolve().parents[2] / "shared" / "usage"

settings.register_profile(
    "trajmill", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("trajmill")


@pytest.fixture(scope="session")
def usage() -> Path:
    """The folder of real public logs; absent on machines that were not given it."""
    if not USAGE.is_dir():
        pytest.skip("../shared/usage is not on this machine")
    return USAGE
