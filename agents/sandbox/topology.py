"""Which processors and memory belong together on this host, and where the next sandbox goes. Called by the factory.

`read()` looks once, `pick()` decides for each sandbox: no state, no I/O in the decision. The factory keeps one zygote
per NumaNode, bound to its `cpus` and to memory of its `id`.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from schemas.errors import SandboxUnsupported

ROOT = Path("/sys/devices/system")
_MEMORY = re.compile(r"^Node \d+ MemTotal:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class NumaNode:
    """Processors with the memory next to them: a NUMA domain, or a part of one where the firmware splits it."""

    id: int
    """The kernel's number of it, for mbind and set_mempolicy."""
    cpus: tuple[int, ...]
    """Those that this process may use, ascending, at least one. With those of memory-less nodes nearest to it."""
    memory_mb: int


@dataclass(frozen=True)
class Topology:
    """All nodes that have both memory and a processor that we may use, by ascending id."""

    nodes: tuple[NumaNode, ...]
    cores: tuple[tuple[int, ...], ...]
    """Processors that are hyperthreads of one core, each group ascending; only those that we may use."""


def read(root: Path = ROOT, allowed: Collection[int] | None = None) -> Topology:
    """The topology below `root`, cut to the processors in `allowed` (None: the affinity of this process).

    A host without NUMA in sysfs is one node. Raises SandboxUnsupported with the file that is not what it should be.
    """
    usable = set(os.sched_getaffinity(0) if allowed is None else allowed)
    if not (root / "node").is_dir():
        megabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        return Topology((NumaNode(0, tuple(sorted(usable)), megabytes),), _cores(root, usable))
    ids = _list(root / "node" / "online")
    cpus = {i: set(_list(root / "node" / f"node{i}" / "cpulist")) & usable for i in ids}
    memory = {i: _megabytes(root / "node" / f"node{i}" / "meminfo") for i in ids}
    for i in ids:
        if cpus[i] and not memory[i]:
            cpus[_nearest(root, ids, i, memory)] |= cpus[i]
    nodes = tuple(NumaNode(i, tuple(sorted(cpus[i])), memory[i]) for i in ids if cpus[i] and memory[i])
    if missing := sorted(usable.difference(*(node.cpus for node in nodes))):
        raise SandboxUnsupported(f"{root / 'node'}: no node has the processors {missing} that this process may use")
    return Topology(nodes, _cores(root, usable))


def pick(topology: Topology, live_by_node: Mapping[int, int]) -> NumaNode:
    """The node for the next sandbox: the one that is least full once it is there, the lowest id among equals.

    How full: sandboxes over capacity, and capacity is the smaller of a node's shares of the processors and of the
    memory. So `n` sandboxes divide as d'Hondt divides seats: no node has fewer than its share of `n`, rounded down.
    """
    return min(topology.nodes, key=lambda node: (live_by_node.get(node.id, 0) + 1) / capacity(topology, node))


def capacity(topology: Topology, node: NumaNode) -> Fraction:
    """What part of the host's sandboxes fits on the node, in (0, 1]; the parts may add up to less than 1."""
    cpus = sum(len(other.cpus) for other in topology.nodes)
    memory = sum(other.memory_mb for other in topology.nodes)
    return min(Fraction(len(node.cpus), cpus), Fraction(node.memory_mb, memory))


def siblings(topology: Topology) -> int:
    """How many processors share a core with another: whether the classes need to be kept apart by core scheduling."""
    return sum(len(core) for core in topology.cores if len(core) > 1)


def _cores(root: Path, usable: set[int]) -> tuple[tuple[int, ...], ...]:
    groups = set()
    for cpu in usable:
        file = root / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        together = set(_list(file)) & usable if file.exists() else {cpu}
        if cpu not in together:
            raise SandboxUnsupported(f"{file}: {cpu} itself is missing")
        groups.add(tuple(sorted(together)))
    return tuple(sorted(groups))


def _nearest(root: Path, ids: tuple[int, ...], node: int, memory: Mapping[int, int]) -> int:
    """The node with memory at the smallest distance; the kernel writes one distance for each online node, in order."""
    file = root / "node" / f"node{node}" / "distance"
    words = _text(file).split()
    if len(words) != len(ids) or not all(word.isdecimal() for word in words):
        raise SandboxUnsupported(f"{file}: not {len(ids)} numbers: {' '.join(words)[:80]!r}")
    distances = [(int(word), i) for word, i in zip(words, ids, strict=True) if memory[i]]
    if not distances:
        raise SandboxUnsupported(f"{root / 'node'}: no node has memory")
    return min(distances)[1]


def _megabytes(file: Path) -> int:
    found = _MEMORY.search(_text(file))
    if found is None:
        raise SandboxUnsupported(f"{file}: no line `Node N MemTotal: … kB`")
    return int(found[1]) // 1024


def _list(file: Path) -> tuple[int, ...]:
    """Numbers of a kernel list such as `0-3,8-11`; an empty one has none."""
    text = _text(file).strip()
    numbers: set[int] = set()
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
            raise SandboxUnsupported(f"{file}: not a list of numbers and ranges: {text[:80]!r}")
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise SandboxUnsupported(f"{file}: {error}") from error
