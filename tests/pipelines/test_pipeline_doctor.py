"""The doctor's exit status says what its lines say, and a missing package is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines import doctor

ROOT = Path(__file__).resolve().parents[2]


def test_the_exit_status_follows_the_findings() -> None:
    found = doctor.findings()
    assert {"python", "memory", "packages", "extra: engine", "model weights"} <= {f.what for f in found}
    assert any(f.what.startswith("sandbox") for f in found)
    command = [sys.executable, "-m", "pipelines.cli", "doctor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == int(any(f.state == "missing" for f in found))
    assert "Traceback" not in done.stderr


def test_a_package_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CORE", (*doctor.CORE, "no-such-distribution"))
    packages = next(f for f in doctor.findings() if f.what == "packages")
    assert packages.state == "missing"
    assert packages.detail == "not installed: no-such-distribution"
