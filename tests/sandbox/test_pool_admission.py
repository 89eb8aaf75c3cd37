"""Room by numbers: what 2,500 idle sandboxes need, and every signal that can be short."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.sandbox.admission import PoolSettings, never, shortage
from agents.sandbox.base import Limits
from agents.sandbox.signals import Reading

SETTINGS = PoolSettings()
LIMITS = Limits(memory_mb=256, disk_mb=64, processes=64)
EMPTY = Reading(memory_mb=23_000, memory_total_mb=24_105, pids=32_000, pids_total=32_768, fds=19_900, disk_mb=70_000)


def test_2500_idle_sandboxes_of_256_mb_fit_on_24_gb():
    for live in range(2500):
        used = replace(EMPTY, memory_mb=int(23_000 - 0.6 * live), pids=32_000 - live, fds=19_900 - live)
        assert shortage(used, SETTINGS, LIMITS, "background", making=7) is None, live


SHORT = [
    ("memory", {"memory_mb": 512 + 256 + 64 - 1}),
    ("pids", {"pids": 256 + 64 - 1}),
    ("fds", {"fds": 256 + 8 - 1}),
    ("disk", {"disk_mb": 511}),
    ("memory_pressure", {"memory_pressure": 40.1}),
    ("io_pressure", {"io_pressure": 90.1}),
]


@pytest.mark.parametrize(("cause", "fields"), SHORT)
def test_each_signal_holds_back_both_classes_just_below_its_level(cause, fields):
    short = replace(EMPTY, **fields)
    for priority in ("latency", "background"):
        found, message = shortage(short, SETTINGS, LIMITS, priority, making=0)
        assert found == cause and any(character.isdigit() for character in message)
    enough = replace(short, **{name: value + (-0.1 if "pressure" in name else 1) for name, value in fields.items()})
    assert shortage(enough, SETTINGS, LIMITS, "latency", making=0) is None


def test_the_processor_is_for_background_to_wait_for():
    busy = replace(EMPTY, cpu_pressure=90.1)
    assert shortage(busy, SETTINGS, LIMITS, "background", making=0) == (
        "cpu_pressure",
        "cpu_pressure 90.1% of the last 10 s, above 90%",
    )
    assert shortage(busy, SETTINGS, LIMITS, "latency", making=0) is None


@pytest.mark.parametrize("field", ["memory_mb", "pids", "fds"])
def test_what_is_being_made_counts_though_it_does_not_show_yet(field):
    enough = {"memory_mb": 512 + 256 + 64, "pids": 256 + 64, "fds": 256 + 8}[field]
    tight = replace(EMPTY, **{field: enough})
    assert shortage(tight, SETTINGS, LIMITS, "latency", making=0) is None
    assert shortage(tight, SETTINGS, LIMITS, "latency", making=1) is not None
    assert shortage(replace(tight, **{field: enough + 1}), SETTINGS, LIMITS, "latency", making=1) is None


LIMITS_ASKED = st.builds(
    Limits, memory_mb=st.integers(1, 30_000), disk_mb=st.integers(1, 1000), processes=st.integers(1, 40_000)
)


@given(LIMITS_ASKED)
def test_what_could_be_met_is_admitted_on_an_empty_host_and_nothing_else(limits):
    """`never` must not refuse what an empty host admits, nor let wait what even an empty host does not admit."""
    can = never(SETTINGS, limits, EMPTY.memory_mb, EMPTY.pids) is None
    assert can == (shortage(EMPTY, SETTINGS, limits, "latency", making=0) is None)


def test_a_pool_for_nothing():
    assert never(PoolSettings(max_live=0), LIMITS, 23_000, 32_000) == ("limits", "this pool is set to hold no sandbox")
