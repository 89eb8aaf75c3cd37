"""The native sandbox does what base.py promises: results, streams, timeouts, files, many at once, nothing left."""

import asyncio
import os
import resource
import time
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.sandbox.base import VERIFY, Limits
from agents.sandbox.native import cgroups
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.probe import probe
from schemas.errors import SandboxDied, SandboxError


def unique_sleep() -> str:
    """A sleep that can be found among all processes of the host."""
    return f"sleep 9999.{uuid.uuid4().int % 10**15:015d}"


def alive(command: str) -> list[int]:
    """Host processes, zombies aside, whose command line is exactly this."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        if b" ".join(words).decode(errors="replace") == command:
            found.append(int(folder.name))
    return found


def test_results(use):
    async def body(box):
        done = await box.run("echo out; echo err >&2; exit 3")
        assert (done.exit_code, done.signal, done.stdout, done.stderr) == (3, None, b"out\n", b"err\n")
        assert not done.timed_out and done.dropped_bytes == 0
        done = await box.run("kill -SEGV $$")
        assert (done.exit_code, done.signal) == (None, 11)
        done = await box.run("echo a; echo b >&2; echo c", merge_stderr=True)
        assert (done.stdout, done.stderr) == (b"a\nb\nc\n", b"")
        assert (await box.run(["printf", "%s|", "a b", "$HOME"])).stdout == b"a b|$HOME|"
        assert (await box.run("cat; cat", stdin=b"hello")).stdout == b"hello"
        assert (await box.run("cat")).stdout == b""
        assert (await box.run("pwd", cwd="/tmp")).stdout == b"/tmp\n"

    use(body)


def test_what_cannot_start_is_a_result(use):
    async def body(box):
        assert (await box.run(["no-such-program"])).exit_code == 127
        assert (await box.run(["/work"])).exit_code == 126
        assert (await box.run("true", cwd="/nowhere")).exit_code == 126
        assert (await box.run([])).exit_code == 126
        assert (await box.run("echo a\0b")).exit_code == 126
        assert (await box.run("true " + "x" * 200_000)).exit_code == 126
        assert (await box.run(["true"] + ["x"] * 5000)).exit_code == 126
        longest = await box.run("echo " + "x" * 130_000, timeout_s=20)
        assert longest.exit_code == 0 and len(longest.stdout) + longest.dropped_bytes == 130_001

    use(body)


def test_large_stdin_and_ignored_stdin(use):
    async def body(box):
        data = bytes(range(256)) * 8000
        assert (await box.run("wc -c", stdin=data)).stdout.strip() == str(len(data)).encode()
        assert (await box.run("true", stdin=data)).exit_code == 0
        assert (await box.run("exec 0<&-; sleep 0.2", stdin=data)).exit_code == 0

    use(body)


def test_environment_is_fixed_and_the_same_every_time(inside):
    look = "env | sort; id; hostname; umask; ulimit -a; ls -lA --time-style=+ --ignore=proc / /dev /etc /work /verify"
    first, second = (inside(look).stdout.decode() for _ in range(2))
    assert first == second
    for line in ("HOME=/work", "LANG=C.UTF-8", "TZ=UTC", "PYTHONHASHSEED=0", "TMPDIR=/tmp", "sandbox"):
        assert f"{line}\n" in first
    assert "uid=1000(agent) gid=1000(agent)" in first


def test_python_and_tools_inside(python_inside):
    code = (
        "import sqlite3, json, csv, subprocess, ssl, ctypes, multiprocessing, tempfile\n"
        "db = sqlite3.connect('x.db'); db.execute('create table t(a)'); db.execute('insert into t values (7)')\n"
        "db.commit(); print(db.execute('select a from t').fetchall())\n"
        "print(subprocess.check_output(['sed', 's/a/b/'], input=b'a'))\n"
        "with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))"
    )
    assert python_inside(code) == "[(7,)]\nb'b'\n[1, 2]\n"
    found = probe()
    assert all(check.ok or check.optional for check in found if check.name != "memory limit"), found


def test_output_is_capped_and_counted(use):
    async def body(box):
        done = await box.run("head -c 30000000 /dev/zero; head -c 1500 /dev/zero >&2")
        assert len(done.stdout) == 1000 and len(done.stderr) == 1000
        assert done.dropped_bytes == 30_000_000 - 1000 + 500 and done.exit_code == 0
        done = await box.run("yes", timeout_s=0.3)
        assert done.timed_out and done.stdout == (b"y\n" * 500) and done.dropped_bytes > 0

    use(body, Limits(output_bytes=1000))


def test_returns_when_the_main_process_ends(use):
    """A background child holds the pipes open; it lives on and may keep writing."""

    async def body(box):
        started = time.monotonic()
        done = await box.run("echo before; (sleep 0.8; echo late; echo late >&2; touch written) & echo after")
        assert done.stdout == b"before\nafter\n" and time.monotonic() - started < 0.8
        assert (await box.run("until [ -e written ]; do sleep 0.05; done")).exit_code == 0
        await box.run("yes & echo $! > pid")
        assert (await box.run("sleep 0.3; kill $(cat pid)")).exit_code == 0

    use(body)


async def until(condition) -> None:
    """Wait for something that another process is about to do; ten seconds are the end of patience."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


TREES = {
    "plain": "{sleep}",
    "background": "{sleep} & wait",
    "setsid": "setsid {sleep} & sleep 100",
    "nohup": "nohup {sleep} > /dev/null 2>&1 & sleep 100",
    "trap": "trap '' TERM INT HUP QUIT; {sleep}; {sleep}",
    "orphan": "(setsid bash -c '{sleep} & disown' &) ; sleep 100",
    "daemon": 'python3 -c "import os; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); '
    "os.execvp('sleep', '{sleep}'.split())\"; sleep 100",
    "stopped": "{sleep} & sleep 0.1; kill -STOP $!; sleep 100",
    "main has ended": "{sleep} & exec sleep 100",
}


@pytest.mark.parametrize("kind", TREES)
def test_timeout_kills_the_whole_tree(use, kind):
    marker = unique_sleep()
    limit = 2.0 if kind == "daemon" else 0.8  # Python takes a while to start on a busy machine

    async def body(box):
        running = asyncio.ensure_future(box.run(TREES[kind].format(sleep=marker), timeout_s=limit))
        await until(lambda: alive(marker))
        done = await running
        assert done.timed_out and done.exit_code is None and done.signal is None
        assert not alive(marker)
        assert done.wall_s < limit + 1
        assert (await box.run("echo still here")).stdout == b"still here\n"

    use(body)


def test_timeout_leaves_other_commands_alone(use):
    other, late = unique_sleep(), unique_sleep()

    async def body(box):
        await box.run(f"{other} > /dev/null &")
        await until(lambda: alive(other))
        results = await asyncio.gather(box.run(late, timeout_s=0.2), box.run("sleep 0.6; echo done"))
        assert results[0].timed_out and results[1].stdout == b"done\n"
        assert alive(other) and not alive(late)
        await box.kill_all()
        assert not alive(other)

    use(body)


def test_default_timeout_is_the_limit(inside):
    assert inside("sleep 5", Limits(command_s=0.2)).timed_out


def test_kill_all_ends_running_commands_too(use):
    marker = unique_sleep()

    async def body(box):
        running = asyncio.ensure_future(box.run(f"setsid {marker} & {marker}"))
        await until(lambda: len(alive(marker)) == 2)
        await box.kill_all()
        done = await running
        assert done.signal == 9 and not alive(marker)
        assert (await box.run("ls /proc | grep -c '^[0-9]'; exit 0")).stdout != b"0\n"
        await box.kill_all()

    use(body)


def test_cancelled_command_is_killed(use):
    marker = unique_sleep()

    async def body(box):
        running = asyncio.ensure_future(box.run(f"setsid {marker} & {marker}"))
        await until(lambda: len(alive(marker)) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not alive(marker)
        assert (await box.run("echo ok")).stdout == b"ok\n"

    use(body)


def test_no_zombies_are_left(use):
    async def body(box):
        await box.run("for i in $(seq 150); do (true &) ; done; sleep 0.2")
        left = (await box.run("cat /proc/[0-9]*/stat | grep -c ') Z '")).stdout
        assert left == b"0\n"

    use(body)


def test_200_commands_in_one(use):
    async def body(box):
        for i in range(200):
            done = await box.run(f"echo {i} >> log; wc -l < log")
            assert done.stdout.strip() == str(i + 1).encode()

    use(body)


def test_40_live_at_once():
    async def main():
        factory = NativeFactory(accept_process_memory_limit=True)
        boxes = await asyncio.gather(*(factory.open(Limits()) for _ in range(40)))
        await asyncio.gather(*(box.run(f"echo {i} > mine") for i, box in enumerate(boxes)))
        kept = await asyncio.gather(*(box.collect(["mine"]) for box in boxes))
        assert [files["mine"] for files in kept] == [f"{i}\n".encode() for i in range(40)]
        assert len({box.pid for box in boxes}) == 40
        await factory.close()
        return [box.pid for box in boxes]

    assert not any(Path("/proc", str(pid)).exists() for pid in asyncio.run(main()))


def test_descriptors_above_1023(use):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"the hard limit of open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:

        async def body(box):
            assert (await box.run("cat", stdin=b"x" * 200_000)).dropped_bytes == 200_000 - 65536
            await box.put({"a": b"1"})
            assert await box.collect(["a"]) == {"a": b"1"}

        use(body)
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_close_leaves_nothing(use):
    def state():
        mounts = Path("/proc/self/mountinfo").read_text()
        groups = [path for parent in cgroups.find().parents for path in parent.glob(f"trajmill-{os.getpid()}-*")]
        return mounts, len(list(Path("/proc/self/fd").iterdir())), groups

    marker = unique_sleep()

    async def body(box):
        await box.run(f"setsid {marker} & yes &")
        await box.put({"a": b""})
        await box.collect(["a", "b"])
        await until(lambda: alive(marker))
        await box.close()
        await box.close()
        assert not alive(marker)
        return box.pid

    before = state()
    pid = use(body)
    assert not Path("/proc", str(pid)).exists()
    assert state() == before


def test_everything_raises_when_it_is_gone(use):
    async def body(box):
        marker = unique_sleep()
        running = asyncio.ensure_future(box.run(marker))
        await until(lambda: alive(marker))
        os.kill(box.pid, 9)
        with pytest.raises(SandboxDied):
            await running
        for call in (box.run("true"), box.put({"a": b""}), box.collect(["a"]), box.kill_all()):
            with pytest.raises(SandboxDied):
                await call
        await box.close()
        with pytest.raises(SandboxDied, match="gone"):
            await box.run("true")

    use(body)


NAMES = st.text(
    alphabet=st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=20
)
PATHS = st.lists(NAMES.filter(lambda name: name not in {".", ".."}), min_size=1, max_size=3).map("/".join)


@settings(max_examples=10)
@given(files=st.dictionaries(PATHS, st.binary(max_size=300), max_size=6))
def test_put_and_collect_round_trip(use, files):
    files = {path: data for path, data in files.items() if not any(other.startswith(f"{path}/") for other in files)}

    async def body(box):
        await box.put(files)
        assert await box.collect([*files, "absent"]) == files

    use(body)


def test_put_makes_usable_files(use):
    async def body(box):
        await box.put({"a/b/run.sh": b"#!/bin/sh\necho hi", "a/x": b"old"}, executable=frozenset({"a/b/run.sh"}))
        assert (await box.run("a/b/run.sh && echo new > a/x && rm -r a/b && stat -c %U%a a a/x")).stdout == (
            b"hi\nagent755\nagent644\n"
        )
        await box.put({"a/x": b"put again"})
        assert await box.collect(["a/x", "a/b/run.sh", "a"]) == {"a/x": b"put again"}
        await box.put({"check.py": b"print(open('/work/a/x').read())"}, root=VERIFY)
        assert (await box.run(["python3", "/verify/check.py"])).stdout == b"put again\n"
        with pytest.raises(ValueError, match="below"):
            await box.put({"a": b""}, root="/etc")
        with pytest.raises(SandboxError, match="cannot write 'a'"):
            await box.put({"a": b"there is a folder"})

    use(body)
