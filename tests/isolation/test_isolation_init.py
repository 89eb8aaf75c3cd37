"""PID 1 and what supervises commands cannot be read, steered or ended from inside."""

import contextlib
import uuid
from pathlib import Path

import pytest
from isolation_scene import PRELUDE, Scene, alive, python, until


async def test_init_ignores_every_signal(scene: Scene):
    """All 64, by each of the calls that send one."""
    async with scene.fresh() as box:
        said = await python(
            box,
            """
class Value(ctypes.Union): _fields_ = [('i', ctypes.c_int), ('p', ctypes.c_void_p)]
libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, Value]
handle = call(434, 1, 0)
for number in range(1, 65):
    refused(os.kill, 1, number)
    call(234, 1, 1, number); call(200, 1, number); libc.sigqueue(1, number, Value(7))
    if isinstance(handle, int): call(424, handle, number, 0, 0)
print('sent')
""",
        )
        assert said == "sent\n" and await alive(box)


@pytest.mark.parametrize(
    "line", ["kill -9 -1", "kill -STOP -1", "kill -9 $PPID", "kill -STOP $PPID", "kill -9 1", "kill -SEGV 1 $PPID"]
)
async def test_signals_to_all_leave_a_working_sandbox(scene: Scene, line: str):
    """They may end the command that sends them, and its neighbours in the same sandbox; never the sandbox."""
    box = await scene.shared()
    done = await box.run(f"{line}; sleep 0.05", timeout_s=0.4)
    assert done.wall_s < 5
    assert await alive(box)
    await box.put({"after": b"1"})
    assert await box.collect(["after"]) == {"after": b"1"}


async def test_init_cannot_be_read_or_changed(scene: Scene):
    said = await scene.python("""
buffer = ctypes.create_string_buffer(64)
parts = struct.pack('QQ', ctypes.addressof(buffer), 8)
for pid in (1, os.getppid()):
    for name in ('mem', 'environ', 'maps', 'stack', 'syscall', 'auxv', 'pagemap', 'fdinfo', 'fd', 'root', 'cwd',
                 'ns/mnt', 'ns/pid', 'ns/user', 'task/1/mem', 'map_files', 'io', 'personality', 'clear_refs'):
        path = f'/proc/{pid}/{name}'
        for look in (os.listdir, lambda path: open(path, 'rb').read(1), lambda path: open(path, 'r+b')):
            try:
                if look(path): print('reached', path)
            except OSError: pass
    for number in (16, 16904, 16902, 17): # attach, and seize with options
        if call(101, number, pid, 0, 0) != 'EPERM': print('traced', pid)
    for number in (310, 311):
        if call(number, pid, parts, 1, parts, 1, 0) != 'EPERM': print('memory of', pid)
    if refused(resource.prlimit, pid, resource.RLIMIT_NOFILE, (3, 3)) is None: print('limited', pid)
    handle = call(434, pid, 0)
    if isinstance(handle, int):
        for fd in range(8):
            if isinstance(call(438, handle, fd, 0), int): print('took', fd, 'of', pid)
        if isinstance(call(308, handle, 0x10000000 | 0x20000), int): print('entered', pid)
""")
    assert said == ""


async def test_children_cannot_be_given_to_init(scene: Scene):
    """CLONE_PARENT makes a sibling, not a child of PID 1 that nobody would find at a timeout."""
    async with scene.fresh() as box:
        done = await box.run(["python3", "-c", PRELUDE + """
child = call(56, 0x8000 | 17, 0, 0, 0, 0)
if child == 0:
    call(56, 0x8000 | 17, 0, 0, 0, 0)
    os.setsid(); os.execvp('sleep', ['sleep', '4343'])
time.sleep(60)
"""], timeout_s=0.5)  # fmt: skip
        assert done.timed_out
        assert (await box.run("pgrep -f '[s]leep 4343'")).stdout == b""


def init_of(command: str) -> int | None:
    """The host's number of PID 1 above the process with this command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip() == command:
                pid = folder.name
                while pid != "0":
                    status = dict(row.split(":\t", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines())
                    if status["NSpid"].split()[-1] == "1":
                        return int(pid)
                    pid = status["PPid"]
    return None


def descriptors_of(pid: int) -> list[str]:
    """What its open files are."""
    return [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]


async def test_init_holds_few_descriptors(scene: Scene):
    """Three at most, with commands running and after files went in: what is not open cannot be stolen."""
    if scene.mode != "root":
        pytest.skip("without root nobody may look at the descriptors of a process that cannot be dumped")
    marker = f"sleep 9{uuid.uuid4().int % 10**9}"

    async def runs() -> bool:
        return init_of(marker) is not None

    async with scene.fresh() as box:
        await box.run(f"{marker} > /dev/null 2>&1 &")
        await box.put({"a": b"1"})
        await box.put({"a": b"1"}, root="/verify")
        await box.collect(["a"])
        await until(runs)
        held = descriptors_of(init_of(marker))
        assert len(held) <= 3, held


async def test_a_command_cannot_speak_for_its_supervisor(scene: Scene):
    """It has no descriptor of theirs; what it prints is output and nothing else."""
    box = await scene.shared()
    done = await box.run(["python3", "-c", "import os, struct\nfor fd in range(64):\n try: os.write(fd, struct.pack("
                          "'IIii', 9, 1, 0, 0))\n except OSError: pass\nos._exit(7)"])  # fmt: skip
    assert done.exit_code == 7 and len(done.stdout) == len(done.stderr) == 16
    assert await alive(box)
