"""What a sandbox looks like inside, in the words that the zygote reads. Called by zygote.py and host.py.

Everything is the same on every host but the contents of /usr and of /opt/python. Targets are relative to the new root.
"""

import os
import sys
import sysconfig
from pathlib import Path

from agents.sandbox.base import Limits, Priority
from agents.sandbox.topology import NumaNode
from schemas.errors import SandboxUnsupported

MIB = 1024 * 1024
OWN_INODES = 8
"""Folders that every sandbox starts with."""
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
DEVICES = ("null", "zero", "full", "random", "urandom")
ETC = {
    "passwd": "root:x:0:0::/:/bin/false\nagent:x:1000:1000::/work:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
ETC_OF_HOST = ("alternatives", "ld.so.cache")
"""Needed to run what /usr holds: Debian's awk is a link through one, libraries are found through the other."""
PATHS = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
ENVIRONMENT = {
    "HOME": "/work",
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TMPDIR": "/tmp",  # noqa: S108  (the sandbox's own)
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
}


def verify_mb(limits: Limits) -> int:
    """Size of /verify, which what fills the other folders cannot take away."""
    return max(4, limits.disk_mb // 4)


def disk_mb(limits: Limits) -> int:
    """All that files in one sandbox can take."""
    return limits.disk_mb + verify_mb(limits)


def python_folder() -> Path | None:
    """The running Python's installation when it is not part of the system, which every sandbox sees anyway."""
    base = Path(sys.base_prefix).resolve()
    return None if base == Path("/") or base.is_relative_to("/usr") else base


def root(node: NumaNode | None, priority: Priority) -> bytes:
    """What a zygote needs to know: NUMA node, whether its sandboxes are idle ones, the steps of `build_root`."""
    cpus = ",".join(map(str, node.cpus)) if node else ""
    out = [str(node.id if node else 0), cpus, str(int(priority == "background"))]
    out += [*_system(), *_devices()]
    for name in ("work", "tmp", "dev/shm", "verify", "proc"):
        out += ["dir", name, "755"]
    return encode([*out, "proc", "proc", *_python()])


def create(limits: Limits) -> bytes:
    """What the zygote needs to know about one sandbox, see `read_limits` in zygote.c."""
    sizes = (limits.memory_mb * MIB, limits.disk_mb * MIB, limits.processes, limits.open_files)
    store = (f"{limits.disk_mb}m", limits.inodes + OWN_INODES, f"{verify_mb(limits)}m")
    return encode([str(value) for value in (*sizes, *store)])


def unsupported(code: int, step: str) -> SandboxUnsupported:
    """The error for a failed step, as the zygote and PID 1 name them."""
    return SandboxUnsupported(code, f"making a sandbox failed at {step!r}: {os.strerror(code)}")


def _system() -> list[str]:
    out = ["dir", "usr", "755", "bind", "/usr", "usr"]
    for name in SYSTEM:
        path = Path("/") / name
        if path.is_symlink():
            out += ["link", str(path.readlink()), name]
        elif path.is_dir():
            out += ["bind", str(path), name]
    out += ["dir", "etc", "755", "dir", "var", "755", "link", "/tmp", "var/tmp"]  # noqa: S108
    for name, text in ETC.items():
        out += ["file", f"etc/{name}", text]
    for name in ETC_OF_HOST:
        if (Path("/etc") / name).exists():
            out += ["bind", f"/etc/{name}", f"etc/{name}"]
    return out


def _devices() -> list[str]:
    out = ["dir", "dev", "755"]
    for name in DEVICES:
        out += ["device", f"/dev/{name}", f"dev/{name}"]
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        out += ["link", f"/proc/self/fd{target}", f"dev/{name}"]
    return out


def _python() -> list[str]:
    """The running Python at /opt/python when it is not part of /usr, and the environment that finds it."""
    folder = python_folder()
    environment = dict(ENVIRONMENT, PATH=PATHS)
    out = []
    if folder is not None:
        environment["PATH"] = f"/opt/python/bin:{PATHS}"
        # Not the whole folder: beside them may be other environments, or somebody's home.
        out += ["dir", "opt", "755", "dir", "opt/python", "755"]
        for name in ("bin", "lib"):
            out += ["bind", str(folder / name), f"opt/python/{name}"]
        packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        if packages.is_dir():
            # The host's own packages are not the tasks' business, and its .pth files cost every start of Python dear.
            inside = f"opt/python/{packages.relative_to(folder).as_posix()}"
            out += ["tmpfs", inside, "size=4k,nr_inodes=1,mode=0555"]
        library = sysconfig.get_config_var("INSTSONAME")
        if sysconfig.get_config_var("Py_ENABLE_SHARED") and (folder / "lib" / str(library)).exists():
            # Its programs look for the library at the old place. Only this one is offered: the folder may hold others
            # that system programs must not load.
            environment["LD_LIBRARY_PATH"] = "/opt/lib"
            out += ["dir", "opt/lib", "755", "link", f"/opt/python/lib/{library}", f"opt/lib/{library}"]
    for name, value in sorted(environment.items()):
        out += ["env", f"{name}={value}"]
    return out


def encode(fields: list[str]) -> bytes:
    """Fields as the helper reads them, each ended by NUL."""
    return b"".join(os.fsencode(field) + b"\0" for field in fields)
