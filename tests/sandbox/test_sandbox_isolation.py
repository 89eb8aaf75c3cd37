"""Tries to escape from the native sandbox, or to hurt the host, in every way we know. All must fail."""

import asyncio
import os
import platform
import socket
import time
import uuid
from pathlib import Path

import pytest

from agents.sandbox.base import VERIFY, Limits
from agents.sandbox.native import cgroups
from agents.sandbox.native.host import NativeFactory
from schemas.errors import SandboxError

CALL = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    done = libc.syscall(*words)
    return 'done' if done >= 0 else errno.errorcode[ctypes.get_errno()]
"""


# ---- network


def test_only_loopback(use, python_inside):
    server = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    name = uuid.uuid4().hex
    abstract.bind(f"\0{name}")
    abstract.listen()
    port = server.getsockname()[1]
    said = python_inside(
        f"""
import socket
print(open('/proc/net/dev').read().count(':'))
def reach(family, address):
    try:
        with socket.socket(family) as s:
            s.settimeout(2); s.connect(address); return 'reached'
    except OSError as error:
        return type(error).__name__ if error.errno != 101 else 'no network'
print(reach(socket.AF_INET, ('1.1.1.1', 53)), reach(socket.AF_INET, ('169.254.169.254', 80)))
print(reach(socket.AF_INET, ('127.0.0.1', {port})), reach(socket.AF_UNIX, '\\x00{name}'))
own = socket.create_server(('127.0.0.1', 0)); print(reach(socket.AF_INET, own.getsockname()))
"""
    )
    assert said.splitlines() == [
        "1",
        "no network no network",
        "ConnectionRefusedError ConnectionRefusedError",
        "reached",
    ]


def test_socket_families(python_inside):
    code = """
import socket
for family, kind in ((16, 3), (17, 3), (40, 1), (38, 5), (2, 3), (10, 3), (2, 3 | 0o2000000), (44, 3)):
    try: socket.socket(family, kind); print('made', family)
    except OSError as error: print(error.errno)
socket.socket(2, 1); socket.socket(2, 2); socket.socket(10, 1); socket.socketpair()
"""
    assert set(python_inside(code).split()) == {"97", "1"}


# ---- host files and processes


def test_host_files_are_not_there(inside, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    secret.chmod(0o644)
    done = inside(
        f"ls -A /; for p in /root /home /etc/shadow /etc/ssh /sys /run /mnt /boot /var/lib {secret} {Path(__file__)} "
        "/proc/1/root /proc/1/cwd/root /proc/1/fd /proc/self/root/root /dev/vda /dev/sda /dev/kmsg /dev/mem /dev/tty "
        "/proc/self/cwd/../root; do ls -d $p/. $p 2>/dev/null; cat $p 2>/dev/null; done"
    )
    seen = done.stdout.decode().split()
    allowed = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "sbin", "tmp", "usr", "var"}
    assert set(seen) <= allowed | {"verify", "work"}, seen


def test_system_is_read_only(inside):
    done = inside(
        "rm -rf /usr/bin /bin/ls /etc /opt/python/bin /dev 2>/dev/null;"
        "touch /usr/x /etc/x /x /bin/x /dev/x /opt/x /proc/x /verify/x;"
        "mkdir /newdir; mv /etc/passwd /etc/p; echo x >> /etc/hosts; echo x > /usr/bin/env; ln -sf /x /bin/sh",
        timeout_s=60,
    )
    assert done.exit_code != 0
    assert inside("ls /usr/bin/env && cat /etc/passwd").exit_code == 0
    done = inside("for f in /usr /etc /opt / /dev /lib /bin; do [ -w $f ] && echo writable $f; done; echo")
    assert done.stdout == b"\n"


def test_only_own_processes_are_seen(inside):
    done = inside(
        "ls -d /proc/[0-9]*; kill -0 1; for p in $(seq 2 300); do kill -0 $p 2>/dev/null && echo sees $p; done"
    )
    lines = done.stdout.decode().split("\n")
    assert len([line for line in lines if line.startswith("/proc/")]) <= 2
    assert len([line for line in lines if line.startswith("sees")]) <= 2
    assert f"/proc/{os.getpid()}" not in lines


def test_two_sandboxes_share_nothing():
    async def main():
        factory = NativeFactory(accept_process_memory_limit=True)
        one, other = await factory.open(Limits()), await factory.open(Limits())
        try:
            await one.run("sleep 777 > /dev/null & for d in /work /tmp /dev/shm; do echo secret > $d/x; done")
            await one.put({"x": b"secret"}, root=VERIFY)
            look = "cat /work/x /tmp/x /dev/shm/x /verify/x; ps aux | grep -c '[s]leep 777'"
            assert (await one.run(look)).stdout == b"secret\nsecret\nsecret\nsecret1\n"
            assert (await other.run(look)).stdout == b"0\n"
        finally:
            await one.close()
            await other.close()

    asyncio.run(main())


def test_init_cannot_be_touched(use):
    code = (
        CALL
        + """
import signal, resource
for number in range(1, 65):
    if number not in (32, 33):
        try: os.kill(1, number)
        except OSError as error: assert error.errno in (1, 3), error
parent = os.getppid()
for pid in (1, parent):
    for name in ('mem', 'environ', 'fd', 'root', 'cwd', 'maps', 'ns/mnt'):
        try:
            p = f'/proc/{pid}/{name}'
            os.listdir(p) if name in ('fd', 'root', 'cwd') else open(p, 'rb').read(1)
            print('opened', p)
        except OSError: pass
    try: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)); print('limited', pid)
    except OSError: pass
buffer = ctypes.create_string_buffer(64)
print(libc.ptrace(16, 1, 0, 0), libc.ptrace(0, 0, 0, 0), libc.process_vm_readv(1, buffer, 1, buffer, 1, 0))
"""
    )

    async def body(box):
        done = await box.run(["python3", "-c", code])
        assert (done.exit_code, done.stdout) == (0, b"-1 -1 -1\n"), done
        assert (await box.run("echo alive")).stdout == b"alive\n"
        await box.run("kill -9 -1; kill -9 $PPID; sleep 0.1")
        assert (await box.run("echo alive")).stdout == b"alive\n"
        done = await box.run("kill -STOP $PPID; kill -STOP 1; sleep 0.1", timeout_s=0.5)
        assert done.wall_s < 5
        assert (await box.run("echo alive")).stdout == b"alive\n"

    use(body)


# ---- privileges


def test_no_capabilities_and_no_new_ones(inside):
    done = inside("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
    values = dict(line.split(":\t") for line in done.stdout.decode().splitlines())
    assert values.pop("NoNewPrivs") == "1" and values.pop("Seccomp") == "2"
    assert set(values.values()) == {"0" * 16} and len(values) == 5


def test_setuid_gives_nothing(inside):
    done = inside(
        "cp /bin/bash b; chmod 6755 b; ./b -p -c 'id -u; id -ru';"
        "su -c id 2>&1 </dev/null; python3 -c 'import os; os.setuid(0)' 2>&1 | tail -1"
    )
    assert b"uid=0" not in done.stdout and done.stdout.startswith(b"1000\n1000\n")
    assert b"PermissionError" in done.stdout or b"Invalid argument" in done.stdout


def test_device_nodes(inside):
    done = inside("mknod b b 8 0; mknod c c 1 1; mkfifo f && echo fifo; ls")
    assert done.stdout == b"fifo\nf\n"


@pytest.mark.parametrize("command", ["unshare -U true", "unshare -r true", "unshare -n true", "unshare -p true"])
def test_unshare(inside, command):
    assert inside(f"{command} && echo made").stdout == b""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls are those of x86-64")
def test_system_calls(python_inside):
    """Each is refused by the filter: with arguments like these, most would fail otherwise, but differently."""
    refused = {
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "mount_setattr": 442, "unshare": 272, "setns": 308, "ptrace": 101, "process_vm_readv": 310,
        "pidfd_getfd": 438,
        "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "keyctl": 250, "add_key": 248,
        "request_key": 249, "kexec_load": 246, "init_module": 175, "finit_module": 313, "delete_module": 176,
        "open_by_handle_at": 304, "name_to_handle_at": 303, "swapon": 167, "reboot": 169, "settimeofday": 164,
        "clock_settime": 227, "sethostname": 170, "setdomainname": 171, "syslog": 103, "acct": 163, "iopl": 172,
        "memfd_create": 319, "shmget": 29, "semget": 64, "msgget": 68, "fanotify_init": 300, "quotactl": 179,
    }  # fmt: skip
    code = CALL + f"print({{name: call(number, 0, 0, 0, 0, 0, 0) for name, number in {refused!r}.items()}})"
    assert set(eval(python_inside(code)).values()) == {"EPERM"}
    code = CALL + (
        "print(call(435, 0, 0), call(0x40000000 | 39), call(135, 0x40000), [call(56, flag | 17, 0, 0, 0, 0) for flag "
        "in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000)])"
    )
    assert python_inside(code) == f"ENOSYS ENOSYS EPERM {['EPERM'] * 7}\n"


def test_kernel_settings(inside):
    done = inside(
        "for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches /proc/sysrq-trigger "
        "/proc/self/oom_score_adj /proc/sys/net/ipv4/ip_forward; do echo 1 > $f && echo wrote $f; done 2>/dev/null;"
        "date -s 2001-01-01 >/dev/null 2>&1 && echo set; hostname x 2>/dev/null && echo named;"
        "cat /proc/kcore | head -c 1; cat /proc/kmsg | head -c 1"
    )
    assert done.stdout == b""


# ---- exhaustion


def test_fork_bomb(use):
    async def body(box):
        done = await box.run("bomb() { bomb | bomb & }; bomb; sleep 60", timeout_s=1)
        assert done.timed_out and done.wall_s < 4
        assert (await box.run("echo alive")).stdout == b"alive\n"
        left = await box.run("ls -d /proc/[0-9]* | wc -l")
        assert int(left.stdout) <= 4

    use(body)


def test_fork_bomb_in_the_background(use):
    """The main process ends, the bomb goes on: further commands may fail, kill_all must work."""

    async def body(box):
        await box.run(
            'bomb() { while :; do sleep 0.01 & done; }; setsid bash -c "$(declare -f bomb); bomb" >/dev/null 2>&1 &'
        )
        await box.kill_all()
        assert (await box.run("echo alive")).stdout == b"alive\n"

    use(body)


def test_processes_are_bounded(python_inside):
    code = """
import os, time
n = 0
try:
    while n < 500:
        if os.fork() == 0: time.sleep(30); os._exit(0)
        n += 1
except BlockingIOError: pass
print(n)
"""
    assert 20 <= int(python_inside(code, limits=Limits(processes=40))) <= 40


def test_memory_of_one_process(python_inside):
    code = "try: bytearray(1 << 30)\nexcept MemoryError: print('refused')"
    assert python_inside(code) == "refused\n"


def test_memory_of_all_processes(use):
    groups = cgroups.find()
    if not groups.version:
        pytest.skip(f"no memory cgroup here: {groups.why}")
    code = (
        "import time; x = bytearray(60 << 20); x[::4096] = b'1' * len(x[::4096]);"
        "print('has it', flush=True); time.sleep(1)"
    )

    async def body(box):
        done = await box.run(f'for i in 1 2 3 4 5 6; do python3 -c "{code}" & done; wait')
        print(done)
        assert done.stdout.count(b"has it") <= 2 and done.stderr.count(b"Killed") >= 4, done
        assert (await box.run("echo alive")).stdout == b"alive\n"

    use(body, Limits(memory_mb=100, disk_mb=16))


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
def test_disk(use, folder):
    async def body(box):
        await box.run(f"cd {folder}; for i in 1 2 3 4; do head -c 30000000 /dev/zero > f$i; done")
        used = int((await box.run(f"du -sm {folder} | cut -f1")).stdout)
        assert used <= 32
        made = await box.run(f"cd {folder}; rm f*; python3 -c \"\nfor i in range(100000): open(str(i), 'x')\"")
        assert b"No space left" in made.stderr
        await box.put({"check.py": b"print('checked')"}, root=VERIFY)
        assert (await box.run(["python3", "/verify/check.py"])).stdout == b"checked\n"
        if folder == "/work":
            with pytest.raises(SandboxError, match="No space left"):
                await box.put({"more": b"x"})

    use(body, Limits(disk_mb=32))


def test_sparse_and_huge_files(use):
    async def body(box):
        await box.run("truncate -s 30M sparse; truncate -s 10T huge; ln sparse link")
        kept = await box.collect(["sparse", "huge", "link"])
        assert {path: len(data) for path, data in kept.items()} == {"sparse": 30 << 20, "link": 30 << 20, "huge": 0}

    use(body, Limits(disk_mb=32))


def test_flood_does_not_grow_the_host(use):
    async def body(box):
        before = time.process_time()
        done = await box.run("yes $(head -c 20000 /dev/zero | tr '\\0' x) | head -c 60000000")
        assert len(done.stdout) == 65536 and done.dropped_bytes == 60_000_000 - 65536
        assert time.process_time() - before < 5

    use(body)


# ---- files in and out


def test_collect_follows_nothing(use):
    async def body(box):
        await box.run(
            "echo real > real; ln -s real link; ln -s /etc/passwd passwd; ln -s / up; ln -s /proc/self/root magic;"
            "ln -s . dot; mkdir d; ln -s ../real d/link; mkfifo fifo; ln -s /dev/zero zero;"
            "ln -s /proc/self/environ env; ln -s loop loop;"
            "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\""
        )
        names = [
            "real",
            "link",
            "passwd",
            "up/etc/passwd",
            "magic/etc/passwd",
            "dot/real",
            "d/link",
            "fifo",
            "zero",
            "env",
        ]
        names += [
            "../etc/passwd",
            "/etc/passwd",
            "/work/real",
            "d/../real",
            "loop",
            "sock",
            "d",
            ".",
            "",
            "a\0b",
            "x" * 5000,
        ]
        started = time.monotonic()
        assert await box.collect(names) == {"real": b"real\n"}
        assert time.monotonic() - started < 2

    use(body)


def test_put_follows_nothing(use):
    async def body(box):
        await box.run("echo old > old; ln -s old link; ln -s /tmp out; mkfifo fifo; ln old hard; ln -s / root; mkdir d")
        for path in ("../x", "/tmp/x", "d/../../x", "", ".", "out/x", "root/tmp/x", "a\0b", "old/x"):
            with pytest.raises(ValueError):
                await box.put({path: b"new"})
        await box.put({"link": b"1", "fifo": b"2", "hard": b"3"})
        assert (await box.run("cat old; ls /tmp; stat -c %F link fifo hard; cat link fifo hard")).stdout == (
            b"old\nregular file\nregular file\nregular file\n123"
        )

    use(body)


def test_a_moving_target_is_never_followed(use):
    """A process swaps a folder for a link to the outside as fast as it can while the host reads and writes."""

    async def body(box):
        swap = "import ctypes\nlibc = ctypes.CDLL(None)\nwhile True: libc.renameat2(-100, b'real', -100, b'away', 2)"
        await box.run("mkdir real; printf inside > real/f; ln -s /etc away")
        running = asyncio.ensure_future(box.run(["python3", "-c", swap], timeout_s=1))
        seen = set()
        while not running.done():
            seen.update((await box.collect(["real/f", "away/f", "real/passwd", "away/passwd"])).items())
            try:
                await box.put({"real/planted": b"p"})
            except (ValueError, SandboxError):
                continue
        assert seen == {("real/f", b"inside"), ("away/f", b"inside")}
        assert (await running).timed_out

    use(body)


def test_verify_cannot_be_prepared(use):
    async def body(box):
        await box.run(
            "echo x > /verify/sitecustomize.py; ln -s /work /verify/d; chmod 777 /verify; mv /verify /v; rm -r /verify"
        )
        assert (await box.run("ls -A /verify; stat -c %a /verify")).stdout == b"755\n"
        await box.put({"d/check": b"1"}, root=VERIFY)
        assert (await box.run("ls -A /work; cat /verify/d/check")).stdout == b"1"

    use(body)
