"""Sandboxes side by side share nothing, cannot watch each other, and cannot use up what the others or the host need."""

import asyncio
import ctypes
import errno
import uuid

import pytest
from isolation_scene import Scene, alive, busy, python

from agents.sandbox.base import Limits

LISTEN = """
port = socket.create_server(('127.0.0.1', 45454)); name = socket.socket(socket.AF_UNIX)
name.bind('\\0neighbour'); name.listen()
print('listening', flush=True); open('/work/ready', 'w').close(); time.sleep(60)
"""


async def test_files_sockets_and_processes_are_apart(scene: Scene):
    secret = uuid.uuid4().hex
    async with scene.fresh() as one, busy(one, LISTEN):
        await one.run("for d in /work /tmp /dev/shm; do echo $0 > $d/x; done".replace("$0", secret))
        await one.put({"x": secret.encode()}, root="/verify")
        said = await scene.shell(
            "cat /work/x /tmp/x /dev/shm/x /verify/x 2>/dev/null; ps aux | grep -c '[n]eighbour';"
            f"grep -rl {secret[:-1]}[{secret[-1]}] /work /tmp /dev/shm /verify /proc/[0-9]*/cmdline 2>/dev/null"
        )
        assert said == "0\n"
        said = await scene.python("""
for family, address in ((2, ('127.0.0.1', 45454)), (1, '\\0neighbour')):
    with socket.socket(family) as s: print(refused(s.connect, address))
print(open('/proc/net/unix').read().count('neighbour'), open('/proc/net/tcp').read().count(':B18E'))
""")
        assert said == "ECONNREFUSED\nECONNREFUSED\n0 0\n"
        # Its own parent it may kill where both are the same user: that ends its own command and nothing else.
        await python(await scene.shared(), "\n".join(
            f"for pid in {{*range(2, 400)}} - {{os.getpid(), os.getppid()}}: refused(os.kill, pid, {number})"
            for number in (9, 15)
        ))  # fmt: skip
        assert (await one.run("pgrep -f neighbour | wc -l")).stdout != b"0\n"


@pytest.mark.parametrize("event", ["open", "run"])
async def test_nobody_watches_what_a_neighbour_runs(scene: Scene, event: str):
    """The files of /usr are the same inodes everywhere: inotify would tell every use of them."""
    watch = """
notes = call(294, os.O_NONBLOCK)
if isinstance(notes, int): call(254, notes, b'/usr/bin/tac', 0xfff); call(254, notes, b'/usr/bin', 0xfff)
open('/work/ready', 'w').close()
time.sleep(0.5)
if isinstance(notes, int) and refused(os.read, notes, 4096) is None: open('/work/saw', 'w').close()
time.sleep(60)
"""
    async with scene.fresh() as spy, scene.fresh() as other, busy(spy, watch):
        await other.run("tac /dev/null" if event == "run" else "cat /usr/bin/tac > /dev/null")
        await asyncio.sleep(0.6)
        assert await spy.collect(["saw"]) == {}


# ---- what the kernel counts for the whole host, or for the user who makes the sandboxes

HOARDS = {
    "inotify instances": """
while isinstance(call(294, 0), int): pass
""",
    "pending signals": """
class Value(ctypes.Union): _fields_ = [('i', ctypes.c_int), ('p', ctypes.c_void_p)]
libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, Value]
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
while libc.sigqueue(os.getpid(), 40, Value(1)) == 0: pass
""",
    "asynchronous input and output": """
while isinstance(call(206, 4000, ctypes.byref(ctypes.c_ulong(0))), int): pass
""",
}


def host_can(name: str) -> str:
    """What the host's own attempt to get one more says: the error, or nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    number, context = ctypes.c_int(0), ctypes.c_ulong(0)
    attempts = {
        "inotify instances": lambda: libc.inotify_init1(0),
        "pending signals": lambda: libc.syscall(222, 0, 0, ctypes.byref(number)),
        "asynchronous input and output": lambda: libc.syscall(206, 4000, ctypes.byref(context)),
    }
    undo = {
        "inotify instances": libc.close,
        "pending signals": lambda done: libc.syscall(226, number),
        "asynchronous input and output": lambda done: libc.syscall(207, context),
    }
    done = attempts[name]()
    if done < 0:
        return errno.errorcode[ctypes.get_errno()]
    undo[name](done)
    return ""


@pytest.mark.parametrize("name", HOARDS)
async def test_hoarding_leaves_enough_for_the_host(scene: Scene, name: str):
    assert host_can(name) == ""
    async with scene.fresh(Limits(processes=8)) as box:
        async with busy(box, HOARDS[name] + "open('/work/ready', 'w').close(); time.sleep(60)"):
            during = host_can(name)
        assert during == "" and await alive(box)


# ---- forks


async def test_a_fork_is_not_fooled_by_marks_of_overlayfs(scene: Scene):
    """An agent marks its files as overlayfs marks deleted, opaque and moved ones: a fork sees them as they are."""
    async with scene.fresh() as parent:
        await python(
            parent,
            """
os.makedirs('d/e'); open('d/f', 'w').write('kept'); open('d/e/g', 'w').write('kept')
for path in ('d', 'd/e', 'd/f', '.'):
    for name, value in (('opaque', b'y'), ('redirect', b'/d/e'), ('whiteout', b''), ('metacopy', b''), ('origin', b'')):
        refused(os.setxattr, path, f'user.overlay.{name}', value)
refused(os.mknod, 'd/gone', stat.S_IFCHR | 0o600, 0)
os.symlink('/proc/self/root', 'magic'); os.mkfifo('fifo')
""",
        )
        snapshot = await parent.seal()
        assert await parent.collect(["d/f", "d/e/g"]) == {"d/f": b"kept", "d/e/g": b"kept"}
    try:
        one, other = await scene.factory.fork(snapshot), await scene.factory.fork(snapshot)
        try:
            assert await one.collect(["d/f", "d/e/g", "magic/etc/passwd", "fifo"]) == {"d/f": b"kept", "d/e/g": b"kept"}
            await one.run("echo mine > d/f; rm -r d/e; touch new; find / -xdev -delete")
            assert await other.collect(["d/f", "d/e/g", "new"]) == {"d/f": b"kept", "d/e/g": b"kept"}
            later = await scene.factory.fork(snapshot)
            assert await later.collect(["d/f", "d/e/g", "new"]) == {"d/f": b"kept", "d/e/g": b"kept"}
            rows = (await later.run("grep -v ' /proc ' /proc/self/mountinfo")).stdout.decode().splitlines()
            assert len(rows) == len({row.split()[4] for row in rows}), rows
            await later.close()
        finally:
            await one.close()
            await other.close()
    finally:
        await snapshot.close()
