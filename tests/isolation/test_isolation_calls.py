"""System calls that could open a way out, tried raw. All in one program, each result a test."""

import json
import platform

import pytest
from isolation_scene import Scene

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls are those of x86-64")

MOUNTS = {
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "open_tree": 428, "open_tree_attr": 467,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "statmount": 457, "listmount": 458, "swapon": 167, "swapoff": 168, "quotactl": 179, "quotactl_fd": 443,
    "open_by_handle_at": 304, "name_to_handle_at": 303, "fanotify_init": 300, "uselib": 134, "ustat": 136, "sysfs": 139,
}  # fmt: skip
NAMESPACES = {"unshare": 272, "setns": 308}
OTHERS_MEMORY = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "process_madvise": 440, "process_mrelease": 448,
    "kcmp": 312, "pidfd_getfd": 438, "move_pages": 279, "migrate_pages": 256,
}  # fmt: skip
KERNEL = {
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "keyctl": 250, "add_key": 248, "request_key": 249, "kexec_load": 246,
    "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176, "create_module": 174,
    "reboot": 169, "syslog": 103, "acct": 163, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "vhangup": 153,
    "lookup_dcookie": 212, "nfsservctl": 180, "_sysctl": 156, "mbind": 237, "set_mempolicy": 238,
    "set_mempolicy_home_node": 450, "io_setup": 206,
}  # fmt: skip
CLOCKS_AND_NAMES = {
    "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159, "sethostname": 170,
    "setdomainname": 171,
}  # fmt: skip
UNCOUNTED_MEMORY = {"memfd_create": 319, "memfd_secret": 447}
# Sandboxes of one zygote may share an IPC namespace: nothing in it may be made, found or used.
IPC = {
    "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220, "msgget": 68,
    "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241, "mq_timedsend": 242,
}  # fmt: skip
CALLS = MOUNTS | NAMESPACES | OTHERS_MEMORY | KERNEL | CLOCKS_AND_NAMES | UNCOUNTED_MEMORY | IPC

# What a filter must see through: flags, structures in memory, the upper halves of registers, other tables of calls.
TRICKS = {
    "clone3": "call(435, 0, 0)",
    "clone3 with a new user namespace": "call(435, struct.pack('<11Q', 0x10000000, *[0] * 10), 88)",
    "clone with a new mount namespace": "call(56, 0x20000 | 17, 0, 0, 0, 0)",
    "clone with a new cgroup namespace": "call(56, 0x02000000 | 17, 0, 0, 0, 0)",
    "clone with a new uts namespace": "call(56, 0x04000000 | 17, 0, 0, 0, 0)",
    "clone with a new ipc namespace": "call(56, 0x08000000 | 17, 0, 0, 0, 0)",
    "clone with a new user namespace": "call(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "clone with a new pid namespace": "call(56, 0x20000000 | 17, 0, 0, 0, 0)",
    "clone with a new network namespace": "call(56, 0x40000000 | 17, 0, 0, 0, 0)",
    "clone with flags above 32 bits": "call(56, 0x100000000 | 0x10000000 | 17, 0, 0, 0, 0)",
    "unshare a time namespace": "call(272, 0x80)",
    "x32 getpid": "call(0x40000000 | 39)",
    "x32 ptrace": "call(0x40000000 | 521, 0, 0, 0, 0)",
    "personality ADDR_NO_RANDOMIZE": "call(135, 0x40000)",
    "personality READ_IMPLIES_EXEC": "call(135, 0x400000)",
    "personality PER_LINUX32": "call(135, 8)",
    "TIOCSTI": "call(16, 0, 0x5412, b'x')",
    "TIOCSTI with upper bits": "call(16, 0, 0x700005412, b'x')",
    "TIOCLINUX": "call(16, 0, 0x541C, bytes([3]))",
    "socket AF_VSOCK with upper bits": "call(41, 0x100000000 | 40, 1, 0)",
    "socket AF_NETLINK with flags": "call(41, 16, 3 | 0o2004000, 0)",
    "socketpair AF_TIPC": "call(53, 30, 2, 0, struct.pack('ii', 0, 0))",
    "huge pages of the host": "call(9, 0, 2 << 20, 3, 0x40022 | 63 << 26, -1, 0)",
    "core scheduling cookie": "call(157, 62, 1, 0, 0, 0)",
    "prlimit of PID 1": "call(302, 1, 7, struct.pack('QQ', 3, 3), 0)",
    "prlimit of the supervisor": "call(302, os.getppid(), 7, struct.pack('QQ', 3, 3), 0)",
    "scheduling of PID 1": "call(144, 1, 5, struct.pack('i', 0))",
    "scheduling of PID 1 by attributes": "call(314, 1, struct.pack('IIQiIQQQ', 48, 5, 0, 0, 0, 0, 0, 0), 0)",
    "processors of PID 1": "call(203, 1, 8, struct.pack('Q', 1))",
    "nice of PID 1": "call(141, 0, 1, 19)",
    "prlimit with upper bits": "call(302, 0x100000001, 7, struct.pack('QQ', 3, 3), 0)",
    "message queue": "call(240, b'q', 0o102, 0o600, 0)",
    "lease on a system file": "call(72, os.open('/usr/bin/env', 0), 1024, 0)",
    "change notes on a system folder": "call(72, os.open('/usr/bin', 0), 1026, 0x80000001)",
    "file handle of the parent": "call(303, -100, b'/usr', struct.pack('II', 0, 0), struct.pack('i', 0), 0)",
    "sync of the host's disks": "call(306, os.open('/usr/bin/env', 0))",
    "capset": "call(126, struct.pack('Ii', 0x20080522, 0), struct.pack('6I', 1 << 21, 1 << 21, 0, 0, 0, 0))",
    "ambient capability": "call(157, 47, 2, 21, 0, 0)",
    "setgroups": "call(116, 1, struct.pack('I', 0))",
    "real-time clock alarm": "call(222, 8, 0, struct.pack('i', 0))",
}
HARMLESS = {
    "getpid": "call(39)",
    "personality, asking": "call(135, 0xffffffff)",
    "clone": "(lambda child: os._exit(0) if child == 0 else os.waitpid(child, 0)[1])(call(56, 17, 0, 0, 0, 0))",
    "prlimit, own": "call(302, 0, 7, 0, 0)",
    "terminal size": "call(16, 0, 0x5413, struct.pack('4H', 0, 0, 0, 0))",
    "mmap": "call(9, 0, 4096, 3, 0x22, -1, 0) > 0 and 0",
}
"""That the tricks fail proves something only when what they are made of works."""

PROGRAM = f"""
answers = {{name: call(number, -1 if name == 'setns' else 0, 0, 0, 0, 0, 0) for name, number in {CALLS!r}.items()}}
for name, code in {TRICKS | HARMLESS!r}.items():
    try: answers[name] = eval(code)
    except Exception as error: answers[name] = repr(error)
print(json.dumps(answers))
"""


@pytest.mark.parametrize("name", CALLS)
async def test_call_is_refused(scene: Scene, name: str):
    """With arguments like these most would fail anyway, but differently."""
    answers = json.loads(await scene.once(PROGRAM))
    assert answers[name] in {"EPERM", "ENOSYS"}, answers[name]


@pytest.mark.parametrize("name", TRICKS)
async def test_trick_is_refused(scene: Scene, name: str):
    answers = json.loads(await scene.once(PROGRAM))
    errors = {"EPERM", "ENOSYS", "EACCES", "EAFNOSUPPORT", "EMFILE", "ENOMEM", "ENOTSUP", "EOPNOTSUPP"}
    assert answers[name] in errors or (name == "sync of the host's disks" and answers[name] == 0), answers[name]


@pytest.mark.parametrize("name", HARMLESS)
async def test_harmless_call_works(scene: Scene, name: str):
    answers = json.loads(await scene.once(PROGRAM))
    assert isinstance(answers[name], int) or answers[name] == "ENOTTY", answers[name]


async def test_32_bit_calls_are_refused(scene: Scene):
    """By machine code: `int 0x80` reaches the 32-bit table, where the same numbers are other calls."""
    said = await scene.python("""
import mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex('b814000000 cd80 c3'))  # mov eax, getpid; int 0x80; ret
call_it = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
child = os.fork()
if child == 0: os._exit(1 if call_it() > 0 else 0)
status = os.waitpid(child, 0)[1]
print('reached' if os.WIFEXITED(status) and os.WEXITSTATUS(status) else 'refused')
""")
    assert said == "refused\n"


async def test_own_filter_opens_nothing(scene: Scene):
    """A filter of the agent's own that allows everything, and one that asks a listener, only come on top."""
    said = await scene.python("""
def install(action, flags):
    code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, action))
    return call(317, 1, flags, ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(code))))
print(install(0x7fff0000, 0), call(272, 0x10000000), call(41, 40, 1, 0))
""")
    assert said == "0 EPERM EAFNOSUPPORT\n"
