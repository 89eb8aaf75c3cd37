"""Signals read what the host says: this one, and made-up ones with control groups of either version."""

import os
import resource
import socket
import time
from pathlib import Path

import pytest

from agents.sandbox.signals import Signals, own_groups

MIB = 1024 * 1024
PROC = {
    "meminfo": "MemTotal:       24684092 kB\nMemFree:        100 kB\nMemAvailable:   20480000 kB\nBuffers:  0 kB\n",
    "loadavg": "0.55 0.27 1.08 2/968 31521\n",
    "sys/kernel/threads-max": "192730\n",
    "sys/kernel/pid_max": "32768\n",
    "pressure/cpu": "some avg10=2.51 avg60=0.96 avg300=0.61 total=3\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "pressure/memory": "some avg10=0.32 avg60=0.06 avg300=0.18 total=6\nfull avg10=0.18 avg60=0.03 avg300=0 total=1\n",
    "self/cgroup": "0::/\n",
}
V1 = {"self/cgroup": "8:pids:/box\n4:memory:/outer/box\n3:cpu,cpuacct:/\n0::/\n"}
V2 = {"self/cgroup": "0::/outer/box\n"}


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def host(tmp_path):
    """`host(proc files, cgroup files)` gives Signals of a made-up host."""
    made = []

    def make(proc: dict[str, str], groups: dict[str, str]) -> Signals:
        (tmp_path / "cgroup").mkdir()
        tree(tmp_path / "cgroup", groups)
        made.append(Signals(tmp_path, tree(tmp_path / "proc", PROC | proc), tmp_path / "cgroup"))
        return made[-1]

    yield make
    for signals in made:
        signals.close()


def test_a_plain_host(host):
    reading = host({}, {})()
    assert (reading.memory_mb, reading.memory_total_mb) == (20_000, 24_684_092 // 1024)
    assert (reading.pids, reading.pids_total) == (32_768 - 968, 32_768)
    assert (reading.cpu_pressure, reading.memory_pressure, reading.io_pressure) == (2.51, 0.32, None)


def test_a_host_without_groups(host, tmp_path):
    tree(tmp_path, {})
    signals = host({}, {})
    (tmp_path / "proc" / "self" / "cgroup").unlink()
    assert not list(own_groups(tmp_path / "proc", tmp_path / "absent", "memory"))
    assert signals().memory_mb == 20_000


def memory(prefix: str, version: int, limit: str, used: int, cache: int) -> dict[str, str]:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    key = "inactive_file" if version == 2 else "total_inactive_file"
    stat = f"anon 5\ninactive_file {cache if version == 2 else 0}\n{key} {cache}\nlast 1\n"
    return {f"{prefix}/{names[0]}": limit, f"{prefix}/{names[1]}": str(used), f"{prefix}/memory.stat": stat}


@pytest.mark.parametrize(("version", "proc"), [(1, V1), (2, V2)])
def test_the_tightest_group_counts_and_its_page_cache_is_free(host, version, proc):
    top = "memory/" if version == 1 else ""
    none = "9223372036854771712\n" if version == 1 else "max\n"
    groups = {
        **memory(f"{top}outer", version, str(4000 * MIB), 3000 * MIB, 100 * MIB),
        **memory(f"{top}outer/box", version, none, 50 * MIB, 0),
    }
    pids = "pids/box" if version == 1 else "outer"
    signals = host(proc, groups | {f"{pids}/pids.max": "500\n", f"{pids}/pids.current": "123\n"})
    reading = signals()
    assert (reading.memory_mb, reading.memory_total_mb) == (1100, 4000)
    assert (reading.pids, reading.pids_total) == (377, 500)


def test_a_roomy_group_does_not_count(host):
    reading = host(V2, memory("outer/box", 2, str(30_000 * MIB), 1000 * MIB, 0))()
    assert (reading.memory_mb, reading.memory_total_mb) == (20_000, 24_684_092 // 1024)


def test_a_container_that_sees_its_own_group_as_the_top(host):
    """Docker without a cgroup namespace: the membership names a path that is not mounted."""
    assert host(V1, memory("memory", 1, str(2000 * MIB), 500 * MIB, 0))().memory_mb == 1500


def test_readings_follow_the_host(host, tmp_path):
    signals = host({}, {})
    first = signals()
    ends = [socket.socket() for _ in range(20)]
    assert signals().fds == first.fds - 20
    for end in ends:
        end.close()
    assert signals().fds == first.fds
    with (tmp_path / "proc" / "meminfo").open("r+") as file:
        file.write(PROC["meminfo"].replace("20480000", "  512000"))
    assert signals().memory_mb == 500


def test_this_host():
    signals = Signals()
    reading = signals()
    known = {line.split(":")[0]: int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()}
    assert 0 < reading.memory_mb <= reading.memory_total_mb <= known["MemTotal"] // 1024
    assert 0 < reading.pids < reading.pids_total <= int(Path("/proc/sys/kernel/pid_max").read_text())
    opened = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - reading.fds
    assert abs(opened - open_files()) <= 1
    free = os.statvfs(".")
    assert reading.disk_mb == pytest.approx(free.f_bavail * free.f_frsize / MIB, rel=0.05)
    assert (reading.cpu_pressure is None) >= (not Path("/proc/pressure/cpu").exists())
    before = time.process_time()
    for _ in range(200):
        signals()
    assert (time.process_time() - before) / 200 < 500e-6, "ten times the bar, as test machines are what they are"
    signals.close()
    signals.close()


def test_it_closes_what_it_opened(tmp_path):
    before = open_files()
    with pytest.raises(FileNotFoundError):
        Signals(tmp_path, tree(tmp_path / "proc", {"meminfo": PROC["meminfo"]}))
    signals = Signals()
    signals.close()
    assert open_files() == before
