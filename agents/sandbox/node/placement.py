"""Which node to ask for the next sandbox, from measurements that are already old. Pure; called by client.py.

Several clients (replicas) decide at the same time and never talk to each other. "The emptiest node" would send all of
them to the same one until the next measurement, so a replica draws two nodes at random and asks the emptier: with old
information this spreads best (Mitzenmacher, "How useful is old information?", 2000). Nodes re-check, so a wrong
guess costs one refused request.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agents.sandbox.base import Limits, Priority

HALF_LIFE_S = 5.0
"""A measurement this old counts half; the other half is the average of all nodes."""
PRESSED = 50.0
"""From this much CPU pressure on, latency-sensitive sandboxes go elsewhere if they can."""


@dataclass(frozen=True)
class NodeReading:
    """What a node measured of itself."""

    live: int
    queued: int
    max_live: int
    memory_free_mb: int
    """Above what the node keeps for itself."""
    cpu_pressure: float
    """Percent of the last 10 s in which something waited for a processor (PSI `some`)."""


@dataclass(frozen=True)
class Known:
    """What one replica knows of a node that answers."""

    reading: NodeReading
    age_s: float
    placed: int = 0
    """Its own leases since the reading, less those given back; the reading does not have them yet."""
    refused: bool = False
    """The node has refused something since the reading, and not for its class or its size."""


def order(known: Mapping[str, Known], limits: Limits, priority: Priority, rng: random.Random) -> Iterator[str]:
    """Every node, in the order to ask them. `rng` is the replica's own; drawn from only as far as the order is read."""
    free = forecast(known)
    tiers: dict[int, list[str]] = {}
    for name in sorted(known):
        tiers.setdefault(_tier(known[name], free[name], limits, priority), []).append(name)
    for _, names in sorted(tiers.items()):
        while names:
            drawn = rng.choices(names, weights=[known[name].reading.max_live + 1 for name in names], k=2)
            best = max(drawn, key=lambda name: free[name])
            names.remove(best)
            yield best


def forecast(known: Mapping[str, Known]) -> dict[str, float]:
    """The predicted free share of each node, at most 1; below 0 where more was placed than fits."""
    seen = {name: _free(node) / max(node.reading.max_live, 1) for name, node in known.items()}
    mean = sum(seen.values()) / max(len(seen), 1)
    trust = {name: 0.5 ** (node.age_s / HALF_LIFE_S) for name, node in known.items()}
    return {name: mean + trust[name] * (share - mean) for name, share in seen.items()}


def _free(node: Known) -> int:
    return node.reading.max_live - node.reading.live - node.reading.queued - node.placed


def _tier(node: Known, free: float, limits: Limits, priority: Priority) -> int:
    """0: ask first; 1: it would be slow there; 2: it will probably refuse."""
    reading = node.reading
    memory_mb = limits.memory_mb + limits.disk_mb
    if node.refused or free * reading.max_live < 1 or reading.memory_free_mb < memory_mb:
        return 2
    return int(priority == "latency" and reading.cpu_pressure >= PRESSED)
