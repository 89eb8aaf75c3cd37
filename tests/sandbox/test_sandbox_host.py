"""The host's side: building the zygote, hosts that cannot, a supervisor that dies, and the rootless mode."""

import asyncio
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from agents import compiled
from agents.sandbox.base import Limits
from agents.sandbox.native import build, cgroups
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.native.sandbox import NativeSandbox
from agents.sandbox.native.zygote import Zygote
from agents.sandbox.topology import NumaNode
from schemas.errors import SandboxUnsupported

PROJECT = Path(__file__).resolve().parents[2]
HERE = "tests/sandbox"


def python(code: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
    )


# ---- build


def test_many_processes_build_one_zygote(tmp_path):
    place = str(tmp_path / "c")
    code = f"from pathlib import Path; from agents.sandbox.native import build; print(build.build(Path({place!r})))"
    running = [python(code) for _ in range(4)]
    said = {process.communicate(timeout=120)[0] for process in running}
    assert len(said) == 1 and [path.name for path in (tmp_path / "c").iterdir()] == [Path(said.pop().strip()).name]
    built = next((tmp_path / "c").iterdir())
    before = built.stat().st_mtime_ns
    assert build.build(tmp_path / "c") == built and built.stat().st_mtime_ns == before


def test_key_follows_the_sources(tmp_path):
    (tmp_path / "zygote.c").write_text("int main(void) { return 0; }")
    first = compiled.key(build.program(tmp_path))
    (tmp_path / "more.h").write_text("")
    assert first != compiled.key(build.program(tmp_path)) != compiled.key(build.program())


def test_what_cannot_be_built_is_typed(tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "zygote.c").write_text("int main(void) { return missing; }")
    with pytest.raises(SandboxUnsupported, match=r"(?s)could not compile.*missing"):
        build.build(tmp_path / "cache", broken)
    assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxUnsupported, match="file"):
        build.build(tmp_path / "file" / "cache")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(SandboxUnsupported, match="no-such-compiler"):
        build.build(tmp_path / "cache")


def test_a_zygote_that_others_can_write_is_not_run(tmp_path):
    zygote = build.build(tmp_path)
    zygote.chmod(0o777)
    with pytest.raises(SandboxUnsupported, match="others may write"):
        build.build(tmp_path)


# ---- hosts that cannot


OPEN = """
import asyncio
from agents.sandbox.base import Limits
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.native.sandbox import NativeSandbox
from agents.sandbox.native.zygote import Zygote
from agents.sandbox.topology import NumaNode
from schemas.errors import SandboxUnsupported
async def main():
    factory = NativeFactory(accept_process_memory_limit=True)
    try:
        await factory.open(Limits())
    except SandboxUnsupported as error:
        print(error.errno, error.strerror)
    finally:
        await factory.close()
asyncio.run(main())
"""


def test_host_without_user_namespaces(tmp_path):
    """A user namespace that may make no further ones: the kernel says ENOSPC to clone, as where they are turned off."""
    build.zygote()
    limit = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "-Ur", "bash", "-c", limit, sys.executable, OPEN],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        timeout=60,
        check=False,
    )
    assert "new user namespace" in done.stdout and done.stdout.startswith("28 "), done


def test_cgroup_places_are_found(tmp_path):
    """Trees as the kernel shows them, in a folder: version 1, version 2 with and without delegation."""
    one = tmp_path / "v1"
    for name in ("memory/a/b", "pids/a"):
        (one / name).mkdir(parents=True)
    membership = tmp_path / "membership"
    membership.write_text("9:name=systemd:/\n8:pids:/a\n4:cpu,memory:/a/b\n0::/\n")
    parents = (one / "memory/a/b", one / "pids/a")
    assert cgroups.find(one, membership) == cgroups.Cgroups(1, parents)
    (one / "cpu/a/b").mkdir(parents=True)
    assert cgroups.find(one, membership) == cgroups.Cgroups(1, parents, one / "cpu/a/b")

    two = tmp_path / "v2"
    (two / "user.slice/session").mkdir(parents=True)
    membership.write_text("0::/user.slice/session\n")
    assert cgroups.find(two, membership).version == 0
    (two / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (two / "user.slice/cgroup.subtree_control").write_text("pids\n")
    found = cgroups.find(two, membership)
    assert found == cgroups.Cgroups(2, (two,), two)


def test_cgroups_get_their_limits(tmp_path):
    """In folders, so that what version 2 is given shows on hosts that have version 1."""
    limits = Limits(memory_mb=100, disk_mb=40, processes=5, cpu_weight=50)
    two = cgroups.Cgroups(2, (tmp_path,), tmp_path)
    group = cgroups.create(two, limits, "latency")
    (folder,) = group.folders
    values = {name: (folder / name).read_text() for name in ("memory.max", "pids.max", "cpu.weight")}
    assert values == {"memory.max": str((100 + 40 + 10) * 1024 * 1024), "pids.max": "21", "cpu.weight": "50"}
    assert (folder.parent / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert int((folder.parent / "cpu.weight").read_text()) > 100
    idle = cgroups.create(cgroups.Cgroups(2, (tmp_path,)), limits, "background").folders[0].parent
    assert idle != folder.parent and not (idle / "cpu.weight").exists()
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert group.out_of_memory_kills() == 2


def test_priorities_share_the_processor_as_told():
    async def main():
        factory = NativeFactory()
        await factory.open(Limits(cpu_weight=50), "background")
        await factory.open(Limits(cpu_weight=200))
        where, groups = factory.groups, [box._group.folders[-1] for box in factory.live]
        found = {
            group.parent.name.rpartition("-")[2]: (
                (group / "cpu.shares").read_text().strip(),
                (group.parent / "cpu.idle").read_text().strip(),
            )
            for group in groups
        }
        await factory.close()
        return where, found

    where = cgroups.find()
    if where.version != 1 or where.cpu is None or not (where.cpu / "cpu.idle").exists():
        pytest.skip("no cpu controller of cgroup v1 with cpu.idle here")
    assert asyncio.run(main())[1] == {"background": ("512", "1"), "latency": ("2048", "0")}


def test_left_over_cgroups_are_swept():
    where = cgroups.find()
    if not where.version:
        pytest.skip(f"no cgroups here: {where.why}")
    gone = subprocess.Popen(["true"])
    gone.wait()
    classes = [parent / f"trajmill-{pid}-latency" for parent in where.parents for pid in (gone.pid, os.getpid())]
    for folder in classes:
        (folder / "99999").mkdir(parents=True)
    cgroups.sweep(where)
    assert [folder.exists() for folder in classes] == [False, True] * len(where.parents)
    cgroups.Group(tuple(folder / "99999" for folder in classes)).remove()
    cgroups.remove_classes(where)
    assert not any(folder.exists() for folder in classes)


# ---- NUMA


def test_a_zygote_of_a_numa_node_keeps_its_sandboxes_there():
    """On one processor of the node that every host has; that a host has several is for test_topology to make up."""
    code = (
        "import os; os.sched_setaffinity(0, range(os.cpu_count()));"
        "print(*os.sched_getaffinity(0)); print('prefer' in open('/proc/self/numa_maps').readline())"
    )
    last = max(os.sched_getaffinity(0))

    async def main():
        zygote = Zygote(NumaNode(0, (last,), 1000), "latency", lambda _: None)
        try:
            await zygote.start(build.zygote())
            box = NativeSandbox(Limits(), "latency", cgroups.Group())
            await box.start(zygote)
            done = await box.run(["python3", "-c", code])
            await box.close()
            return done
        finally:
            await zygote.close()

    done = asyncio.run(main())
    if b"numa_maps" in done.stderr:
        pytest.skip("this kernel has no NUMA")
    assert done.stdout.split() == [str(last).encode(), b"True"], done


def test_a_numa_node_that_is_not_there_is_said_to_be_so():
    async def main():
        zygote = Zygote(NumaNode(1000, (0,), 1000), "latency", lambda _: None)
        try:
            with pytest.raises(SandboxUnsupported, match="NUMA node"):
                await zygote.start(build.zygote())
        finally:
            await zygote.close()

    asyncio.run(main())


# ---- rootless


DROP = """
set -e
base=$1 project=$2 packages=$3 scratch=$4 # $5: what to leave out
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
cd /mnt
mkdir python project packages scratch
mount --bind "$base" python
mount --bind "$project" project
mount --bind "$packages" packages
mount --bind "$scratch" scratch
chown 65534:65534 scratch
cd project
echo the scene is set
exec setpriv --reuid 65534 --regid 65534 --clear-groups env -i PATH="$PATH" HOME=/mnt/scratch TMPDIR=/mnt/scratch \
    LD_LIBRARY_PATH=/mnt/python/lib PYTHONPATH=/mnt/packages PYTHONDONTWRITEBYTECODE=1 \
    /mnt/python/bin/python3 -m pytest -x -k "not ($5)" \\
    tests/sandbox/test_sandbox_native.py tests/sandbox/test_sandbox_fork.py
"""


SAME = "depth or chain or 200 or 1023 or round_trip or environment or sparse or stdin or cannot_start or zombies"
"""Takes long, and has nothing to do with user ids."""


def test_all_of_it_without_root(tmp_path):
    """Two other files once more, as nobody, in a mount namespace where nobody can read what the tests need."""
    if os.geteuid() != 0:
        pytest.skip("this run is without root already")
    words = [sys.base_prefix, str(PROJECT), sysconfig.get_path("purelib"), str(tmp_path), SAME]
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", DROP, "drop", *words],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    if "the scene is set" not in done.stdout:
        pytest.skip(f"this host's root cannot set the scene: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
