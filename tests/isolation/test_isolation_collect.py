"""Files in and out: nothing that an agent puts in their way is followed, waited for or mistaken for another."""

import asyncio
import time

import pytest
from isolation_scene import Scene, alive, busy, python

from agents.sandbox.base import VERIFY, Sandbox
from schemas.errors import SandboxError


async def test_collect_follows_nothing(scene: Scene):
    async with scene.fresh() as box:
        await python(
            box,
            """
open('real', 'w').write('real')
for name, target in {
    'link': 'real', 'passwd': '/etc/passwd', 'up': '/', 'magic': '/proc/self/root', 'dot': '.', 'loop': 'loop',
    'zero': '/dev/zero', 'env': '/proc/self/environ', 'mem': '/proc/self/mem', 'fd': '/proc/self/fd/0',
    'cwd': '/proc/1/cwd', 'exe': '/proc/self/exe', 'fds': '/dev/fd', 'verify': '/verify', 'tty': '/dev/stdin',
}.items(): os.symlink(target, name)
os.mkdir('d'); os.symlink('../real', 'd/link'); os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('sock')
refused(os.mknod, 'node', stat.S_IFCHR | 0o666, os.makedev(1, 5))
for path in ('/usr/bin/env', '/etc/passwd', '/proc/version'): refused(os.link, path, 'hard')
os.mkdir('a'); os.chdir('a')
for _ in range(300): os.mkdir('a'); os.chdir('a')
open('f', 'w').write('deep')
""",
        )
        tried = """real link passwd up/etc/passwd magic/etc/passwd dot/real d/link fifo zero env mem fd cwd/etc/passwd
            exe fds/0 verify/x tty ../etc/passwd ../../etc/passwd /etc/passwd /work/real d/../real ./../etc/passwd loop
            sock d . node hard d/. d// ./d /proc/self/root/etc/passwd"""
        deep = "a/" * 301 + "f"
        started = time.monotonic()
        found = await box.collect([*tried.split(), "", "a\0b", "x" * 5000, "x/" * 3000, "\udcff", "..\\etc", deep])
        assert found == {"real": b"real", deep: b"deep"}
        assert time.monotonic() - started < 3


async def test_collect_waits_for_nobody(scene: Scene):
    """A FIFO with and without a writer, a file under a lease, a locked file, one that grows all the time."""
    grabs = """
os.mkfifo('fifo'); os.mkfifo('held')
end = os.open('held', os.O_RDWR)
for name in ('leased', 'locked', 'grows'): open(name, 'w').write('x' * 1000)
lease = os.open('leased', os.O_RDWR)
signal.signal(signal.SIGIO, signal.SIG_IGN)
refused(fcntl.fcntl, lease, 1024, fcntl.F_WRLCK)
lock = os.open('locked', os.O_RDWR); fcntl.lockf(lock, fcntl.LOCK_EX); fcntl.flock(lock, fcntl.LOCK_EX)
open('ready', 'w').close()
grows = os.open('grows', os.O_RDWR | os.O_APPEND)
while True: os.write(grows, b'x' * 4096); os.fstat(grows).st_size > 1 << 20 and os.ftruncate(grows, 0)
"""
    async with scene.fresh() as box, busy(box, grabs):
        started = time.monotonic()
        for _ in range(20):
            found = await box.collect(["fifo", "held", "leased", "locked", "grows"])
            assert not {"fifo", "held"} & set(found) and found["locked"] == b"x" * 1000
        await box.put({"leased": b"new", "grows": b"new", "fifo": b"new"})
        assert time.monotonic() - started < 5
        assert (await box.collect(["leased", "fifo"])) == {"leased": b"new", "fifo": b"new"}


async def test_put_follows_nothing(scene: Scene):
    async with scene.fresh() as box:
        await box.run("echo old > old; ln -s old link; ln -s /tmp out; mkfifo fifo; ln old hard; ln -s / root; mkdir d")
        for path in ("../x", "/tmp/x", "d/../../x", "", ".", "out/x", "root/tmp/x", "a\0b", "old/x"):
            with pytest.raises(ValueError):
                await box.put({path: b"new"})
        await box.put({"link": b"1", "fifo": b"2", "hard": b"3"})
        assert (await box.run("cat old; ls /tmp; stat -c %F link fifo hard; cat link fifo hard")).stdout == (
            b"old\nregular file\nregular file\nregular file\n123"
        )


SWAPS = {
    "folder for link": "mkdir real; printf inside > real/f; ln -s /etc away",
    "folder for magic link": "mkdir real; printf inside > real/f; ln -s /proc/self/root/etc away",
    "folder for verify": "mkdir real; printf inside > real/f; ln -s /verify away",
    "folder for FIFO": "mkdir real; printf inside > real/f; mkfifo away",
}


@pytest.mark.parametrize("kind", SWAPS)
async def test_a_moving_target_is_never_followed(scene: Scene, kind: str):
    """A program swaps a folder for something else as fast as it can while the host reads and writes."""
    swap = "import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.renameat2(-100, b'real', -100, b'away', 2)"
    async with scene.fresh() as box:
        await box.put({"f": b"verifier", "passwd": b"verifier"}, root=VERIFY)
        await box.run(SWAPS[kind])
        running = asyncio.ensure_future(box.run(["python3", "-c", swap], timeout_s=0.3))
        seen = set()
        while not running.done():
            seen.update((await box.collect(["real/f", "away/f", "real/passwd", "away/passwd"])).items())
            try:
                await box.put({"real/planted": b"p"})
            except (ValueError, SandboxError):
                continue
        assert seen == {("real/f", b"inside"), ("away/f", b"inside")}
        assert (await running).timed_out
        await box.kill_all()
        assert (await box.run("ls /verify")).stdout == b"f\npasswd\n"


async def test_a_file_swapped_for_a_fifo_is_not_waited_for(scene: Scene):
    swap = "import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.renameat2(-100, b'f', -100, b'fifo', 2)"
    async with scene.fresh() as box:
        await box.run("echo x > f; mkfifo fifo")
        running = asyncio.ensure_future(box.run(["python3", "-c", swap], timeout_s=0.3))
        seen = set()
        while not running.done():
            seen.update((await box.collect(["f", "fifo"])).values())
        assert seen == {b"x\n"}
        await running


# ---- verification


async def test_verify_cannot_be_prepared(scene: Scene):
    async with scene.fresh() as box:
        await box.run(
            "echo x > /verify/sitecustomize.py; ln -s /work /verify/d; chmod 777 /verify; mv /verify /v; rm -r /verify;"
            "mkdir -p /work/verify; mount --bind /work /verify; umount /verify; touch /verify/x; rmdir /verify"
        )
        hold = """
folder = os.open('/verify', os.O_RDONLY)
open('/work/ready', 'w').close()
while True:
    for name in ('d', 'd/check', 'x'):
        refused(lambda: os.open(name, os.O_RDWR | os.O_CREAT, dir_fd=folder))
"""
        async with busy(box, hold):
            assert (await box.run("ls -A /verify; stat -c %a /verify")).stdout == b"755\n"
            await box.put({"d/check": b"1"}, root=VERIFY)
            assert (await box.run("ls -A /work/verify; cat /verify/d/check")).stdout == b"1"
            said = await box.run(
                "cd /verify; echo 2 > d/check; echo 2 >> d/check; rm d/check; mv d e; chmod 666 d/check; cat d/check"
            )
            assert said.stdout == b"1"


async def works(box: Sandbox) -> None:
    """Commands, Python, files in and out, verification."""
    assert await alive(box)
    assert (await box.run("echo a b | awk '{print $2}' | sed s/b/c/")).stdout == b"c\n"
    await box.put({"in": b"1"})
    assert await box.collect(["in"]) == {"in": b"1"}
    await box.put({"check.py": b"import json; print('checked')"}, root=VERIFY)
    assert (await box.run(["python3", "/verify/check.py"])).stdout == b"checked\n"


WRECKS = {
    "delete everything": "rm -rf --no-preserve-root / 2>/dev/null",
    "delete what is writable": "rm -rf /work/* /work/.* /tmp/* /dev/shm/*; rmdir /work /tmp /dev/shm",
    "take rights away": "chmod 000 /tmp /dev/shm; chmod -R 555 /work; chmod 755 /work",
    "cover the programs": "mkdir bin; for p in bash python3 sh; do printf 'exit 1' > bin/$p; chmod +x bin/$p; done;"
    "export PATH=/work/bin LD_PRELOAD=/work/x.so; cp -r bin /tmp; touch ld.so.preload python3 bash",
    "move the folders": "mv /work /w; mv /tmp /t; mv /dev/shm /dev/s; ln -sfn / /work; ln -sfn / /tmp",
}


@pytest.mark.parametrize("kind", WRECKS)
async def test_everything_works_after_a_wreck(scene: Scene, kind: str):
    async with scene.fresh() as box:
        await box.run(WRECKS[kind], timeout_s=20)
        await works(box)


async def test_a_folder_without_rights_is_a_result(scene: Scene):
    """An agent that locks itself out has failed its task; the sandbox still answers."""
    async with scene.fresh() as box:
        await box.run("echo x > f; chmod 000 /work")
        try:
            await box.put({"more": b"1"})
        except SandboxError as error:
            assert "Permission denied" in str(error)
        assert set(await box.collect(["f"])) <= {"f"}
        assert (await box.run("echo alive", cwd="/")).stdout == b"alive\n"
