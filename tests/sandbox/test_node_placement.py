"""Placement from old measurements: replicas that know nothing of each other do not run to the same node."""

import dataclasses
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.sandbox.base import Limits
from agents.sandbox.node.placement import HALF_LIFE_S, PRESSED, Known, NodeReading, forecast, order

IDLE = NodeReading(live=0, queued=0, max_live=100, memory_free_mb=9999, cpu_pressure=0.0)
LIMITS = Limits()


def known(age_s=0.0, placed=0, refused=False, **reading) -> Known:
    return Known(dataclasses.replace(IDLE, **reading), age_s, placed, refused)


def firsts(nodes: Mapping[str, Known], priority="latency", draws=300) -> Counter:
    rng = random.Random(1)
    return Counter(next(order(nodes, LIMITS, priority, rng)) for _ in range(draws))


nodes_known = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(
        known,
        age_s=st.floats(0, 100),
        placed=st.integers(-20, 120),
        refused=st.booleans(),
        live=st.integers(0, 120),
        queued=st.integers(0, 5),
        max_live=st.integers(0, 100),
        memory_free_mb=st.integers(0, 1000),
        cpu_pressure=st.floats(0, 100),
    ),
    max_size=9,
)


@given(nodes_known, st.sampled_from(["latency", "background"]), st.integers(0, 2**32))
def test_every_node_once_and_the_same_for_the_same_seed(nodes, priority, seed):
    asked = list(order(nodes, LIMITS, priority, random.Random(seed)))
    assert sorted(asked) == sorted(nodes)
    shuffled = dict(reversed(nodes.items()))
    assert asked == list(order(shuffled, LIMITS, priority, random.Random(seed)))
    likely = [not n.refused and n.reading.memory_free_mb >= 320 for n in map(nodes.get, asked)]
    full = [forecast(nodes)[name] * nodes[name].reading.max_live < 1 for name in asked]
    will = [a and not b for a, b in zip(likely, full, strict=True)]
    assert will == sorted(will, reverse=True)  # all that will probably accept come before all others


def test_own_leases_count_before_they_are_measured():
    assert forecast({"a": known(placed=30), "b": known()}) == {"a": 0.7, "b": 1.0}
    assert firsts({"a": known(placed=99), "b": known(placed=100)}) == {"a": 300}


def test_old_readings_are_trusted_less():
    nodes = {"a": known(live=90, age_s=HALF_LIFE_S), "b": known(live=10)}
    assert forecast(nodes) == pytest.approx({"a": (0.1 + 0.5) / 2, "b": 0.9})
    very_old = {"a": known(live=90, age_s=1e4), "b": known(live=10, age_s=1e4)}
    assert forecast(very_old) == {"a": 0.5, "b": 0.5}
    assert min(firsts(very_old).values()) > 60


def test_latency_avoids_pressed_nodes_and_background_does_not():
    nodes = {"a": known(cpu_pressure=PRESSED), "b": known(live=80)}
    assert firsts(nodes) == {"b": 300}
    assert firsts(nodes, "background")["a"] > 150
    assert firsts({"a": known(cpu_pressure=99.0)}) == {"a": 300}


def test_what_is_short_of_memory_or_has_refused_comes_last():
    for bad in (known(memory_free_mb=319), known(refused=True), known(live=100), known(queued=100)):
        rng = random.Random(2)
        assert list(order({"a": bad, "b": known(live=98), "c": known(live=50)}, LIMITS, "latency", rng))[-1] == "a"


def test_large_nodes_get_more():
    drawn = firsts({"small": known(max_live=50), "large": known(max_live=1000)})
    assert drawn["large"] > 5 * drawn["small"] > 0


Choose = Callable[[Mapping[str, Known], random.Random], Iterator[str]]


def ours(nodes: Mapping[str, Known], rng: random.Random) -> Iterator[str]:
    return order(nodes, LIMITS, "latency", rng)


def emptiest(nodes: Mapping[str, Known], rng: random.Random) -> Iterator[str]:
    """The peer: the same forecast, but always the emptiest node first."""
    free = forecast(nodes)
    yield from sorted(nodes, key=lambda name: (-free[name], nodes[name].refused, rng.random()))


@dataclass
class Replica:
    """What one client keeps: see client.py and link.py."""

    rng: random.Random
    readings: dict[str, tuple[NodeReading, float]]
    placed: Counter = field(default_factory=Counter)
    refused: set = field(default_factory=set)


def simulate(
    choose: Choose, *, every_s: float, delay_s: float, life_s: float, load: float = 0.7, seed: int = 5
) -> dict:
    """Eight replicas, twelve nodes of 50; leases live `life_s` on average. Readings come `every_s`, `delay_s` old."""
    step_s, steps, replicas, names = 0.1, 400, 8, [f"n{i:02}" for i in range(12)]
    rng = random.Random(seed)
    world = [
        Replica(random.Random(i), {n: (dataclasses.replace(IDLE, max_live=50), 0.0) for n in names})
        for i in range(replicas)
    ]
    ends: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
    history: dict[str, list[int]] = {name: [] for name in names}
    refusals = leases = lost = 0
    spread, highest = [], 0
    chance = load * 50 * len(names) / life_s * step_s / replicas
    for tick in range(steps):
        now = tick * step_s
        for name in names:
            for _, owner in [entry for entry in ends[name] if entry[0] <= now]:
                world[owner].placed[name] -= 1
            ends[name] = [entry for entry in ends[name] if entry[0] > now]
            history[name].append(len(ends[name]))
        for index, replica in enumerate(world):
            for place, name in enumerate(names):
                if (tick + 7 * index + 3 * place) % round(every_s / step_s) == 0 and now >= delay_s:
                    live = history[name][tick - round(delay_s / step_s)]
                    replica.readings[name] = (dataclasses.replace(IDLE, live=live, max_live=50), now)
                    replica.placed[name] = 0
                    replica.refused.discard(name)
            for _ in range(int(chance) + (rng.random() < chance % 1)):
                leases += 1
                nodes = {
                    name: Known(reading, now - at, replica.placed[name], name in replica.refused)
                    for name, (reading, at) in replica.readings.items()
                }
                for name in choose(nodes, replica.rng):
                    if len(ends[name]) < 50:  # the node's own re-check
                        ends[name].append((now + life_s * rng.uniform(0.5, 1.5), index))
                        replica.placed[name] += 1
                        break
                    refusals += 1
                    replica.refused.add(name)
                else:
                    lost += 1
        live = [len(entries) for entries in ends.values()]
        highest = max(highest, *live)
        if now > 2 * life_s + every_s:
            spread.append(max(live) / statistics.mean(live))
    return {
        "refused": refusals / leases,
        "nowhere": lost / leases,
        "spread": statistics.mean(spread),
        "highest": highest,
        "leases": leases,
    }


@pytest.mark.parametrize(
    ("every_s", "delay_s", "life_s", "load", "refused", "spread", "factor"),
    [
        (1.0, 0.2, 10.0, 0.4, 0.0, 1.25, 1.0),  # as the client does it
        (1.0, 0.2, 2.0, 0.4, 0.0, 1.45, 0.6),  # leases about as old as the readings
        (3.0, 1.0, 3.0, 0.4, 0.001, 1.65, 0.65),
        (1.0, 0.2, 2.0, 0.7, 0.02, 1.4, 0.9),
        (1.0, 0.2, 2.0, 0.9, 0.2, 1.2, 1.1),  # so full that nobody has a choice
    ],
)
def test_replicas_with_old_readings_spread_the_load(every_s, delay_s, life_s, load, refused, spread, factor):
    """`refused`: refused requests per lease. `spread`: fullest node over the mean. `factor`: what is over 1 of it,
    compared with the peer's."""
    options = {"every_s": every_s, "delay_s": delay_s, "life_s": life_s, "load": load}
    mine, peer = simulate(ours, **options), simulate(emptiest, **options)
    assert mine["highest"] <= 50 and mine["nowhere"] == 0
    assert mine["spread"] <= spread, (mine, peer)
    assert mine["refused"] <= refused, (mine, peer)
    assert mine["spread"] - 1 <= factor * (peer["spread"] - 1), (mine, peer)
    assert mine["refused"] <= peer["refused"] / 4, (mine, peer)
