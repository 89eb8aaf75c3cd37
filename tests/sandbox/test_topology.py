"""Topology from a made-up sysfs, and where sandboxes go on it."""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.sandbox.topology import NumaNode, Topology, capacity, pick, read, siblings
from schemas.errors import SandboxUnsupported

FOUR = {0: ("0-1,8-9", 4096), 1: ("2-3,10-11", 4096), 2: ("4-5,12-13", 8192), 3: ("6-7,14-15", 0)}
DISTANCES = {0: "10 20 20 40", 1: "20 10 20 40", 2: "20 20 10 15", 3: "40 40 15 10"}


def tree(root: Path, nodes=FOUR, online="0-3", cpus=16) -> Path:
    """Four nodes of two cores with two threads each (cpu, cpu + 8); node 3 has no memory and is nearest to node 2."""
    (root / "node").mkdir(parents=True)
    (root / "node" / "online").write_text(f"{online}\n")
    for i, (cpulist, megabytes) in nodes.items():
        folder = root / "node" / f"node{i}"
        folder.mkdir()
        (folder / "cpulist").write_text(f"{cpulist}\n")
        lines = f"Node {i} MemTotal:       {megabytes * 1024} kB\nNode {i} MemFree:        12 kB\n"
        (folder / "meminfo").write_text(lines)
        (folder / "distance").write_text(f"{DISTANCES[i]}\n")
    for cpu in range(cpus):
        folder = root / "cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    return root


def test_four_nodes_one_without_memory(tmp_path):
    found = read(tree(tmp_path), range(16))
    assert found.nodes == (
        NumaNode(0, (0, 1, 8, 9), 4096),
        NumaNode(1, (2, 3, 10, 11), 4096),
        NumaNode(2, (4, 5, 6, 7, 12, 13, 14, 15), 8192),
    )
    assert found.cores == tuple((c, c + 8) for c in range(8))
    assert siblings(found) == 16
    assert [capacity(found, node) for node in found.nodes] == [0.25, 0.25, 0.5]


def test_processors_that_we_may_not_use_are_left_out(tmp_path):
    found = read(tree(tmp_path), {2, 5, 13})
    assert [(node.id, node.cpus) for node in found.nodes] == [(1, (2,)), (2, (5, 13))]
    assert siblings(found) == 2
    assert found.cores == ((2,), (5, 13))


def test_a_memory_only_node_has_no_zygote(tmp_path):
    nodes = FOUR | {0: ("", 65536), 3: ("6-7,14-15,0-1,8-9", 2048)}
    assert [node.id for node in read(tree(tmp_path, nodes), range(16)).nodes] == [1, 2, 3]


def test_a_host_without_numa_is_one_node(tmp_path):
    found = read(tmp_path)
    assert [node.cpus for node in found.nodes] == [tuple(sorted(os.sched_getaffinity(0)))]
    assert found.nodes[0].memory_mb > 0
    assert all(len(core) == 1 for core in found.cores) and siblings(found) == 0


def test_this_host():
    found = read()
    assert {c for node in found.nodes for c in node.cpus} == os.sched_getaffinity(0)
    assert pick(found, {}) in found.nodes


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("node/online", "0-x\n"),
        ("node/online", "3-0\n"),
        ("node/node1/cpulist", "2-3,,10\n"),
        ("node/node1/cpulist", "-1\n"),
        ("node/node1/cpulist", "1-2-3\n"),
        ("node/node2/meminfo", "Node 2 MemFree: 1 kB\n"),
        ("node/node3/distance", "40 40\n"),
        ("node/node3/distance", "a b c d\n"),
        ("node/node3/distance", "ä\n"),
        ("cpu/cpu2/topology/thread_siblings_list", "3\n"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, place, text):
    root = tree(tmp_path)
    (root / place).write_text(text)
    with pytest.raises(SandboxUnsupported) as caught:
        read(root, range(16))
    assert str(root / place) in str(caught.value)


def test_what_is_missing_is_named(tmp_path):
    root = tree(tmp_path)
    with pytest.raises(SandboxUnsupported, match=r"\[16\]"):
        read(root, range(17))
    (root / "node" / "node1" / "meminfo").unlink()
    with pytest.raises(SandboxUnsupported, match="node1/meminfo"):
        read(root, range(16))


def test_no_node_has_memory(tmp_path):
    root = tree(tmp_path, {i: (cpus, 0) for i, (cpus, _) in FOUR.items()})
    with pytest.raises(SandboxUnsupported, match="no node has memory"):
        read(root, range(16))


def fill(topology: Topology, count: int, live=()) -> Counter:
    placed = Counter(live)
    for _ in range(count):
        placed[pick(topology, placed).id] += 1
    return placed


def test_a_made_up_host_fills_evenly(tmp_path):
    topology = read(tree(tmp_path), range(16))
    assert fill(topology, 2500) == {0: 625, 1: 625, 2: 1250}
    assert pick(topology, {}).id == 2  # one of many on the larger node is the least
    assert pick(topology, {2: 100}).id == 0
    assert fill(topology, 40, {0: 40})[0] == 40  # others catch up first


hosts = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 1 << 20)), min_size=1, max_size=8).map(
    lambda rows: Topology(tuple(NumaNode(i, tuple(range(cpus)), mb) for i, (cpus, mb) in enumerate(rows)), ())
)


@given(hosts, st.integers(0, 300))
def test_no_node_has_less_than_its_share(topology, count):
    placed = fill(topology, count)
    assert sum(placed.values()) == count
    whole = sum(capacity(topology, node) for node in topology.nodes)
    assert whole <= 1
    for node in topology.nodes:
        assert placed[node.id] >= int(count * capacity(topology, node) / whole)
