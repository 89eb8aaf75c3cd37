"""No rights beyond an ordinary user's, and no way to get them: capabilities, ids, devices, limits, priorities."""

import json
import os
import re

import pytest
from isolation_scene import Scene, alive, python

STATUS = "print(json.dumps(dict(line.rstrip('\\n').split(':\\t', 1) for line in open('/proc/self/status'))))"


async def test_no_capabilities(scene: Scene):
    status = json.loads(await scene.once(STATUS))
    assert {status[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["Uid"].split() == status["Gid"].split() == ["1000"] * 4


async def test_few_ids_are_mapped(scene: Scene):
    """Commands are an id that nothing else on the host has; without root they are one id, ours."""
    for kind in ("uid", "gid"):
        rows = [list(map(int, row.split())) for row in (await scene.shell(f"cat /proc/self/{kind}_map")).splitlines()]
        assert sum(count for _, _, count in rows) <= 2
        outside = next(first + 1000 - inside for inside, first, count in rows if inside <= 1000 < inside + count)
        if scene.mode == "root":
            assert outside >= 65536
        else:
            assert rows == [[1000, outside, 1]], rows


async def test_setuid_files_have_no_effect(scene: Scene):
    said = await scene.shell(
        "cp /bin/bash b; chmod 6755 b; ./b -p -c 'id -u; id -ru; id -g';"
        "find /usr/bin -perm -4000 -type f -not -name su | head -5 |"
        "while read f; do $f -c id < /dev/null | grep uid=0; done; true"
    )
    assert said.splitlines()[:3] == ["1000"] * 3 and "uid=0" not in said, said


async def test_ids_and_file_capabilities_cannot_be_changed(scene: Scene):
    said = await scene.python("""
open('owned', 'w').close()
capability = struct.pack('<5I', 0x02000001, 1 << 21, 0, 0, 0)
print(*[refused(*attempt) for attempt in (
    (os.setuid, 0), (os.setgid, 0), (os.setresuid, 0, 0, 0), (os.setuid, 65534), (os.setgroups, [0]),
    (os.chown, 'owned', 0, 0), (os.chown, 'owned', 1, -1), (os.setxattr, 'owned', 'security.capability', capability),
    (os.setxattr, 'owned', 'trusted.overlay.opaque', b'y'),
)])
""")
    assert set(said.split()) <= {"EPERM", "EINVAL", "EOPNOTSUPP", "ENOTSUP"}, said


async def test_device_nodes(scene: Scene):
    """None can be made that opens: neither the host's disks nor its memory nor a terminal."""
    said = await scene.python("""
opened = []
for kind in (stat.S_IFCHR, stat.S_IFBLK):
    for device in ((0, 0), (1, 1), (1, 3), (4, 0), (5, 0), (5, 2), (8, 0), (10, 200), (10, 229), (253, 0), (254, 0)):
        for folder in ('/work', '/tmp', '/dev/shm', '/dev'):
            path = f'{folder}/node-{kind}-{device}'
            try: os.mknod(path, kind | 0o666, os.makedev(*device)); os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            except OSError: pass
            else: opened.append(path)
            try: os.unlink(path)
            except OSError: pass
print(opened)
""")
    assert said == "[]\n"


async def test_no_node_is_made_at_all(scene: Scene):
    """Not even 0:0, which any user may make: overlayfs takes it for a deletion, so that a fork would miss a file."""
    said = await scene.python("print(refused(os.mknod, 'gone', stat.S_IFCHR | 0o600, 0))\nrefused(os.unlink, 'gone')")
    assert said == "EPERM\n"


async def test_devices_of_the_host_are_absent(scene: Scene):
    known = {"null", "zero", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr", "shm"}
    assert set((await scene.shell("ls -A /dev")).split()) <= known
    said = await scene.python("""
for folder, folders, names in os.walk('/'):
    folders[:] = [name for name in folders if folder != '/' or name not in ('proc', 'usr', 'opt')]
    for name in names:
        mode = os.lstat(f'{folder}/{name}').st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode): print(f'{folder}/{name}')
""")
    assert set(said.split()) == {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/drop_caches", "/proc/sys/vm/overcommit_memory", "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/kernel/ns_last_pid", "/proc/sys/user/max_user_namespaces", "/proc/sysrq-trigger",
        "/proc/self/oom_score_adj", "/proc/self/oom_adj", "/proc/self/uid_map", "/proc/self/setgroups",
        "/proc/self/mem", "/proc/self/timens_offsets", "/proc/self/autogroup", "/proc/self/coredump_filter",
        "/proc/1/oom_score_adj", "/proc/irq/default_smp_affinity", "/proc/mtrr", "/proc/self/attr/current",
    ],
)  # fmt: skip
async def test_kernel_settings_cannot_be_written(scene: Scene, path: str):
    said = await scene.python("print(refused(os.open, sys.argv[1], os.O_WRONLY))", path)
    assert said.strip() in {"EROFS", "EACCES", "ENOENT", "EPERM"}, said


@pytest.mark.parametrize(
    "path",
    ["kcore", "kmsg", "kpageflags", "kpagecount", "slabinfo", "vmallocinfo", "timer_list", "1/environ", "1/maps"],
)
async def test_kernel_memory_cannot_be_read(scene: Scene, path: str):
    said = await scene.python("print(refused(lambda: open(sys.argv[1], 'rb').read(1)))", f"/proc/{path}")
    assert said.strip() in {"EACCES", "ENOENT", "EPERM"}, said


async def test_kernel_addresses_and_keys_are_hidden(scene: Scene):
    said = await scene.shell("awk '{print $1}' /proc/kallsyms | sort -u | head -2; cat /proc/keys")
    assert set(said.split()) <= {"0" * 16}, said


async def test_clock_and_name_cannot_be_set(scene: Scene):
    await scene.shell("date -s 2001-01-01; hostname x; echo x > /etc/hostname; sysctl -w kernel.hostname=x")
    assert await scene.shell("hostname; [ $(date +%Y) -gt 2020 ] && echo now") == "sandbox\nnow\n"


# ---- limits and priorities

LIMITS = "AS CORE FSIZE MEMLOCK MSGQUEUE NICE NOFILE NPROC RTPRIO SIGPENDING"


@pytest.mark.parametrize("name", LIMITS.split())
async def test_limit_is_set_and_cannot_be_raised(scene: Scene, name: str):
    said = await scene.python(
        "kind = getattr(resource, 'RLIMIT_' + sys.argv[1])\n"
        "before = resource.getrlimit(kind)\n"
        "for value in (-1, before[1] + 1):\n"
        "    try: resource.setrlimit(kind, (value, value))\n"
        "    except (ValueError, OSError): pass\n"
        "print(json.dumps([before, resource.getrlimit(kind)]))",
        name,
    )
    before, after = json.loads(said)
    assert before == after and before[1] != -1


async def test_pending_signals_are_few(scene: Scene):
    """The kernel counts them against the user who made the namespace too, whose own timers would fail."""
    said = await scene.python("print(*resource.getrlimit(resource.RLIMIT_SIGPENDING))")
    assert max(map(int, said.split())) <= 4096


async def test_a_crash_starts_nothing_on_the_host(scene: Scene):
    """Where the host pipes cores to a program, a limit of 0 is ignored; only 1 stops it (fs/coredump.c)."""
    said = await scene.python("""
for value in (0, 1 << 20, -1):
    try: resource.setrlimit(resource.RLIMIT_CORE, (value, 1))
    except (ValueError, OSError): pass
print(*resource.getrlimit(resource.RLIMIT_CORE))
child = os.fork()
if child == 0: os.kill(os.getpid(), signal.SIGSEGV)
print(os.WCOREDUMP(os.waitpid(child, 0)[1]))
""")
    assert said == "1 1\nFalse\n"


SCHEDULING = """
class Attributes(ctypes.Structure):
    _fields_ = [('size', ctypes.c_uint32), ('policy', ctypes.c_uint32), ('flags', ctypes.c_uint64),
                ('nice', ctypes.c_int32), ('priority', ctypes.c_uint32), ('times', ctypes.c_uint64 * 3)]
def ask(policy, nice=0, priority=0):
    wanted = Attributes(48, policy, 0, nice, priority, (ctypes.c_uint64 * 3)(10**6, 10**7, 10**7))
    return call(314, 0, ctypes.byref(wanted), 0)
"""


async def test_priority_cannot_be_raised(scene: Scene):
    said = await scene.python(
        SCHEDULING + "best_io = 1 << 13\nprint(ask(1, priority=1), ask(2, priority=1), ask(6), ask(0, nice=-1), "
        "refused(os.nice, -1), refused(os.setpriority, os.PRIO_PROCESS, 0, -5), call(251, 1, 0, best_io))"
    )
    assert set(said.split()) <= {"EPERM", "EACCES"}, said


async def test_background_cannot_leave_its_class(scene: Scene):
    async with scene.fresh(priority="background") as box:
        said = await python(
            box,
            SCHEDULING
            + """
before = os.sched_getscheduler(0)
answers = [ask(policy) for policy in (0, 3, 7)] + [refused(os.sched_setscheduler, 0, policy, os.sched_param(0))
           for policy in (os.SCHED_OTHER, os.SCHED_BATCH)] + [ask(1, priority=1), ask(6), refused(os.nice, -1)]
child = os.fork()
if child == 0:
    os.setsid(); os._exit(os.sched_getscheduler(0))
print(before, os.sched_getscheduler(0), os.WEXITSTATUS(os.waitpid(child, 0)[1]), *set(answers))
""",
        )
        before, after, child, *errors = said.split()
        assert before == after == child == str(os.SCHED_IDLE)
        assert set(errors) <= {"EPERM", "EINVAL", "EACCES"}, errors
        assert await alive(box)


async def test_a_new_session_is_as_idle(scene: Scene):
    """Kernels that schedule by session (autogroup) weigh a new one as any other of the host, whatever is idle in it."""
    if scene.mode == "root":
        pytest.skip("as root a cgroup decides, whatever the session")
    async with scene.fresh(priority="background") as box:
        said = (await box.run("cat /proc/self/autogroup; setsid -w cat /proc/self/autogroup")).stdout.decode()
        assert set(re.findall(r"nice (-?\d+)", said)) <= {"19"}, said
