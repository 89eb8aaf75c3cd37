"""Files, processes, descriptors and secrets of the host are not there."""

import contextlib
import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest
from isolation_scene import PRELUDE, Scene, new_factory, python

from agents.sandbox.base import Limits

TOP = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "sbin", "tmp", "usr", "var"}
TOP |= {"verify", "work"}
ABSENT = """
/etc/shadow /etc/ssh /etc/machine-id /etc/hostname /root /home /sys /sys/fs/cgroup /run /mnt /boot /srv /var/lib
/var/run /dev/vda /dev/sda /dev/nvme0 /dev/kmsg /dev/mem /dev/kvm /dev/fuse /dev/ptmx /dev/pts /dev/net/tun /dev/vsock
/lib/modules/x /proc/1/root /proc/1/cwd /proc/1/fd /proc/1/map_files /proc/1/ns/mnt /proc/self/task/1/root
/proc/self/root/root /proc/self/cwd/../root /proc/thread-self/root/home
"""


@pytest.mark.parametrize("path", ABSENT.split())
async def test_path_is_absent(scene: Scene, path: str):
    said = await scene.python("print(refused(os.listdir, sys.argv[1]), refused(open, sys.argv[1]))", path)
    assert set(said.split()) <= {"ENOENT", "EACCES", "ENOTDIR", "EPERM"}, said


async def test_only_known_folders(scene: Scene):
    assert set((await scene.shell("ls -A /")).split()) <= TOP
    found = await scene.shell("ls -A /var /etc/ssl /opt/python/lib/python3*/site-packages 2>/dev/null | grep -v :")
    assert found.split() == ["tmp"]


async def test_a_secret_of_the_host_is_not_found(scene: Scene):
    secret = uuid.uuid4().hex
    place = Path(os.environ.get("TMPDIR", "/tmp")) / f"of-the-host-{secret}"
    place.write_text(secret)
    try:
        said = await scene.shell(
            f"find / -path /usr -prune -o -name '*{secret}*' -print 2>/dev/null;"
            f"cat {place} /proc/*/root{place} /proc/*/cwd{place} 2>/dev/null"
        )
    finally:
        place.unlink()
    assert said == ""


async def test_roots_of_all_visible_processes_are_the_own(scene: Scene):
    said = await scene.python("""
own = os.stat('/')
for pid in [name for name in os.listdir('/proc') if name.isdigit()] + ['1', '2', 'self/task/1', str(os.getppid())]:
    for name in ('root', 'cwd/..', 'fd/3', 'exe'):
        try: there = os.stat(f'/proc/{pid}/{name}')
        except OSError: continue
        if name == 'root' and (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino): print('another root', pid)
        if name == 'exe' and pid != str(os.getpid()): print('exe of', pid, os.readlink(f'/proc/{pid}/exe'))
""")
    assert said == ""


async def test_system_is_read_only(scene: Scene):
    said = await scene.python("""
import sysconfig
for path in (sysconfig.get_path('purelib'), '/', '/usr', '/usr/bin', '/usr/local/bin', '/etc', '/var', '/lib', '/bin',
             '/opt', '/dev', '/proc', '/verify'):
    for attempt in (lambda: os.mkdir(f'{path}/x'), lambda: os.close(os.open(f'{path}/y', os.O_CREAT | os.O_WRONLY)),
                    lambda: os.symlink('/x', f'{path}/z'), lambda: os.chmod(path, 0o777), lambda: os.utime(path),
                    lambda: os.rename(path, '/work/taken'), lambda: os.rmdir(path)):
        if refused(attempt) is None: print('changed', path)
for path in ('/usr/bin/env', '/etc/passwd', '/etc/hosts', '/dev/null', os.path.realpath(sys.executable)):
    for attempt in (lambda: os.unlink(path), lambda: os.truncate(path, 0), lambda: os.chmod(path, 0o777),
                    lambda: os.link(path, '/work/hard'), lambda: os.setxattr(path, 'user.x', b'y'),
                    lambda: os.rename(path, '/work/taken')):
        if refused(attempt) is None: print('changed', path, attempt)
    if path != '/dev/null' and refused(os.open, path, os.O_WRONLY) is None: print('opened', path)
""")
    assert said == ""


async def test_mounts_tell_nothing_of_others(scene: Scene):
    """No mount of another sandbox, of the place where roots are put together, nor of what makes them."""
    async with scene.fresh(Limits(disk_mb=37)):
        rows = [line.split() for line in (await scene.shell("cat /proc/self/mountinfo")).splitlines()]
    points = [row[4] for row in rows if row[4] != "/proc"]  # its own covers one that the kernel wants to see there
    assert len(points) == len(set(points)), points
    assert all(point == "/" or point.split("/")[1] in TOP for point in points), points
    assert not any("size=37888k" in word or "trajmill" in word for row in rows for word in row), rows
    writable = {row[4] for row in rows if "ro" not in row[5].split(",")}
    assert writable <= {"/work", "/tmp", "/dev/shm"}, writable
    holds_devices = {"/"} | {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}
    assert all("nosuid" in row[5] and ("nodev" in row[5] or row[4] in holds_devices) for row in rows), rows


async def test_cgroups_are_out_of_reach(scene: Scene):
    said = await scene.shell("cut -d : -f 3 /proc/self/cgroup | sort -u")
    assert said == "/\n"
    assert await scene.shell("find / \\( -path /usr -o -path /proc \\) -prune -o -name 'cgroup.*' -print") == ""


# ---- what the host's own process holds


async def test_descriptors_and_environment_are_not_inherited(scene: Scene):
    """Neither by the first sandbox of a factory, nor while others have commands and files under way."""
    secret = uuid.uuid4().hex
    held = os.open("/proc/self/status", os.O_RDONLY)
    os.set_inheritable(held, True)
    os.environ["OF_THE_HOST"] = secret
    look = (
        PRELUDE
        + """
print(*[fd for fd in range(1024) if os.path.islink(f'/proc/self/fd/{fd}') and refused(fcntl.fcntl, fd, 1) is None])
print(*sorted(os.environ))
for pid in os.listdir('/proc'):
    for name in ('environ', 'cmdline'):
        try: print(open(f'/proc/{pid}/{name}').read().replace(chr(0), ' '))
        except OSError: pass
"""
    )
    factory = new_factory(scene.mode)
    try:
        box = await factory.open(Limits())
        await box.run("sleep 5 > /dev/null &")
        done = await box.run(["python3", "-c", look])
        await factory.close()
    finally:
        os.close(held)
        del os.environ["OF_THE_HOST"]
    said = done.stdout.decode()
    assert said.splitlines()[0] == "0 1 2", said
    assert set(said.splitlines()[1].split()) <= {
        "HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "TMPDIR",
        "TZ", "USER",
    }  # fmt: skip
    assert secret not in said and str(Path.cwd()) not in said


async def test_own_pipes_lead_nowhere(scene: Scene):
    """A command's three descriptors: opened anew, turned round, given another owner, they reach its own pipes only."""
    said = await scene.python("""
kinds = [os.readlink(f'/proc/self/fd/{fd}').split(':')[0] for fd in range(3)]
print(kinds, refused(fcntl.fcntl, 1, 8, 1) in (None, 'EPERM', 'ESRCH'))
for path in ('/proc/self/fd/0/..', '/proc/self/fd/1/../../..', '/dev/stdin/..', '/dev/fd/../../root'):
    if refused(os.listdir, path) is None and os.path.realpath(path) not in ('/', '/proc'): print('went', path)
""")
    assert set(eval(said.split("]")[0] + "]")) <= {"pipe", "/dev/null"} and said.count("\n") == 1, said


async def test_only_own_processes_are_seen(scene: Scene):
    said = await scene.python("""
seen = {int(name) for name in os.listdir('/proc') if name.isdigit()}
hit = {pid for pid in range(1, 5000) if refused(os.kill, pid, 0) in (None, 'EPERM')}
print(len(seen), len(hit), int(str(os.getpid()) in open('/proc/self/stat').read().split()[0]))
""")
    seen, hit, _ = map(int, said.split())
    assert seen <= 3 and hit <= 3, said


def state_of(pid: int) -> str:
    """S sleeping, T stopped, as in /proc."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_signals_hit_nobody_outside(scene: Scene):
    """Without root the outsider even has the same user id."""
    outsider = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220  (forking takes a moment only)
    try:
        async with scene.fresh() as box:
            await box.run(["python3", "-c", PRELUDE + f"""
for pid in (-1, 0, {outsider.pid}, {os.getpid()}, -{os.getpgrp()}):
    for number in (signal.SIGCONT, signal.SIGURG): refused(os.kill, pid, number)
for pid in ({outsider.pid}, {os.getpid()}):
    print('found', pid) if isinstance(call(434, pid, 0), int) and pid > 400 else None
for who in (os.PRIO_PROCESS, os.PRIO_PGRP, os.PRIO_USER):
    refused(os.setpriority, who, 0, 19)
call(251, 3, 1000, 3 << 13)
os.kill(-1, signal.SIGKILL)
"""])  # fmt: skip
            await box.run(f"kill -9 -1; kill -STOP {outsider.pid}; kill -9 {outsider.pid}", timeout_s=5)
        assert outsider.poll() is None
        assert os.getpriority(os.PRIO_PROCESS, outsider.pid) == os.getpriority(os.PRIO_PROCESS, 0) < 19
        assert state_of(outsider.pid) == "S"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(outsider.pid, signal.SIGKILL)
        outsider.wait()


async def test_python_of_the_agent_is_not_the_verifiers(scene: Scene):
    """What an agent leaves at home must not run when a verifier starts Python as families do."""
    async with scene.fresh() as box:
        await python(
            box,
            """
import site
for folder in (site.getusersitepackages(), '/work', '/tmp'):
    os.makedirs(folder, exist_ok=True)
    for name in ('usercustomize.py', 'sitecustomize.py', 'json.py'):
        open(f'{folder}/{name}', 'w').write("open('/work/ran', 'a').write('x')")
""",
        )
        await box.run("echo 'touch /work/ran' > ~/.bashrc; cp .bashrc .profile; cp .bashrc .bash_profile")
        await box.run("rm -f ran", cwd="/")
        await box.put({"check.py": b"import json; print('checked')"}, root="/verify")
        done = await box.run(["python3", "-I", "-S", "/verify/check.py"])
        assert done.stdout == b"checked\n"
        assert (await box.run("true")).exit_code == 0
        assert await box.collect(["ran"]) == {}
