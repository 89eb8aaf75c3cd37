"""Compiles the C zygote on first use, cached under the hash of its sources. Called by host.py and probe.py."""

import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from schemas.errors import SandboxUnsupported

SOURCES = Path(__file__).parent
WARNINGS = ("-O2", "-Wall", "-Wextra", "-D_FORTIFY_SOURCE=2")
LINKING = (("-static",), ())
"""Static is half the memory of an idle sandbox; systems without a static C library get the ordinary kind."""


def cache_folder() -> Path:
    """Where compiled zygotes live: `$XDG_CACHE_HOME/trajmill`, else `~/.cache/trajmill`."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "trajmill"
    except RuntimeError as error:
        raise SandboxUnsupported(f"no place for the sandbox zygote: {error}; set XDG_CACHE_HOME") from error


def compiler() -> str:
    """The C compiler: `$CC`, else `cc`. Raises SandboxUnsupported when there is none."""
    name = os.environ.get("CC") or "cc"
    found = shutil.which(name)
    if found is None:
        raise SandboxUnsupported(f"the sandbox zygote needs a C compiler, and {name!r} is not on the PATH")
    return found


def source_key(sources: Path = SOURCES) -> str:
    """Hash of everything that decides what comes out: sources, flags and machine."""
    digest = hashlib.blake2b(repr((WARNINGS, LINKING, platform.machine())).encode(), digest_size=16)
    for path in sorted(sources.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build(folder: Path, sources: Path = SOURCES) -> Path:
    """The zygote in `folder`, compiled unless it is there. Several processes may do this at once."""
    target = folder / f"sandbox-{source_key(sources)}"
    if _trusted(target):
        return target
    cc = compiler()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
            made = _compile(cc, sources, Path(scratch) / "zygote")
            made.chmod(0o755)
            made.replace(target)
    except OSError as error:
        if isinstance(error, SandboxUnsupported):
            raise
        raise SandboxUnsupported(f"the sandbox zygote cannot be built in {folder}: {error}") from error
    return target


@functools.cache
def zygote() -> Path:
    """The compiled zygote of this process. Raises SandboxUnsupported naming what is missing."""
    return build(cache_folder())


def _trusted(path: Path) -> bool:
    """Is it there, ours (or root's), and can nobody else write to it? We are about to execute it."""
    try:
        st = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SandboxUnsupported(f"the sandbox zygote cannot be read: {error}") from error
    if not stat.S_ISREG(st.st_mode) or st.st_uid not in {os.geteuid(), 0} or st.st_mode & 0o022:
        raise SandboxUnsupported(f"{path} belongs to someone else or others may write to it; remove it")
    return True


def _compile(cc: str, sources: Path, target: Path) -> Path:
    complaints = ""
    for linking in LINKING:
        command = [cc, *WARNINGS, *linking, "-o", str(target), *map(str, sorted(sources.glob("*.c")))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, check=False)
        except subprocess.TimeoutExpired as error:
            raise SandboxUnsupported(f"{cc} took more than {error.timeout:g} s for the sandbox zygote") from error
        if done.returncode == 0:
            return target
        complaints = done.stderr.strip()
    raise SandboxUnsupported(f"{cc} could not compile the sandbox zygote: {complaints[-2000:]}")
