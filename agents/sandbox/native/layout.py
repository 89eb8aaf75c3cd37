"""What a sandbox looks like inside: the list of steps that the helper carries out. Pure; called by host.py.

Everything is the same on every host but the contents of /usr and of /opt/python. Targets are relative to the new root.
"""

import os
import sys
import sysconfig
from pathlib import Path

from agents.sandbox.base import Limits

MIB = 1024 * 1024
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


def disk_sizes(limits: Limits) -> dict[str, int]:
    """MiB of each tmpfs. Their sum is what files in one sandbox can take."""
    side = max(4, limits.disk_mb // 4)
    return {"work": limits.disk_mb, "tmp": side, "dev/shm": side, "verify": side}


def python_folder() -> Path | None:
    """The running Python's installation when it lies outside /usr, else None."""
    base = Path(sys.base_prefix).resolve()
    return None if base.is_relative_to("/usr") else base


def steps(limits: Limits) -> list[str]:
    """The specification as flat words and fields, see `build_step` in helper.c."""
    out = [*_system(), *_devices(), "dir", "proc", "555", "proc", "proc"]
    sizes = disk_sizes(limits)
    for name, mode in (("work", "0755"), ("tmp", "1777"), ("dev/shm", "1777")):
        inodes = max(1024, sizes[name] * 128)
        out += ["dir", name, "755", "tmpfs", name, f"size={sizes[name]}m,nr_inodes={inodes},mode={mode}{_owner(mode)}"]
    out += ["dir", "verify", "755", "verify", "verify", f"size={sizes['verify']}m,nr_inodes=4096,mode=0755"]
    out += ["hostname", "sandbox"]
    words = (limits.memory_mb * MIB, limits.disk_mb * MIB, limits.processes, limits.open_files)
    return [*out, *_python(), "limits", *map(str, words)]


def _owner(mode: str) -> str:
    return "" if mode == "1777" else ",uid=1000,gid=1000"


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
        out += ["dir", "opt", "755", "bind", str(folder), "opt/python"]
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
