"""C sources compiled on first use, cached under the hash of all that decides what comes out.

Called by `agents.sandbox.native.build`, `agents.engine.kernels.build` and `pipelines.merge.native`.
"""

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import CannotCompile


@dataclass(frozen=True)
class Program:
    """`what` it is in messages; `name` of the file; `flags`, and `endings`: the first that the linker takes counts.

    `machine`: what the result runs on, as far as the flags let it depend on that.
    """

    what: str
    name: str
    sources: Path
    flags: tuple[str, ...]
    endings: tuple[tuple[str, ...], ...] = ((),)
    machine: str = platform.machine()


def cache_folder() -> Path:
    """Where compiled files live: `$XDG_CACHE_HOME/trajmill`, else `~/.cache/trajmill`. CannotCompile without a home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "trajmill"
    except RuntimeError as error:
        raise CannotCompile(f"no place for compiled files: {error}; set XDG_CACHE_HOME") from error


def key(program: Program) -> str:
    """Hash of sources, flags and machine."""
    facts = (program.flags, program.endings, program.machine)
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=16)
    for path in sorted(program.sources.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build(program: Program, folder: Path) -> Path:
    """The compiled file in `folder`, made unless it is there. Several processes may do this at once."""
    target = folder / f"{program.name}-{key(program)}"
    if _trusted(target, program.what):
        return target
    cc = compiler(program.what)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
            made = _compile(cc, program, Path(scratch) / program.name)
            made.chmod(0o755)
            made.replace(target)
    except OSError as error:
        if isinstance(error, CannotCompile):
            raise
        raise CannotCompile(f"{program.what} cannot be built in {folder}: {error}") from error
    return target


def compiler(what: str) -> str:
    """The C compiler: `$CC`, else `cc`. CannotCompile when there is none."""
    name = os.environ.get("CC") or "cc"
    found = shutil.which(name)
    if found is None:
        raise CannotCompile(f"{what} needs a C compiler, and {name!r} is not on the PATH")
    return found


def _trusted(path: Path, what: str) -> bool:
    """Is it there, ours (or root's), and can nobody else write to it? We are about to execute it."""
    try:
        st = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CannotCompile(f"{what} cannot be read: {error}") from error
    if not stat.S_ISREG(st.st_mode) or st.st_uid not in {os.geteuid(), 0} or st.st_mode & 0o022:
        raise CannotCompile(f"{path} belongs to someone else or others may write to it; remove it")
    return True


def _compile(cc: str, program: Program, target: Path) -> Path:
    complaints = ""
    sources = map(str, sorted(program.sources.glob("*.c")))
    start = [cc, *program.flags, "-o", str(target), *sources]
    for ending in program.endings:
        try:
            done = subprocess.run(
                [*start, *ending], capture_output=True, text=True, errors="replace", timeout=120, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CannotCompile(f"{cc} took more than {error.timeout:g} s for {program.what}") from error
        if done.returncode == 0:
            return target
        complaints = done.stderr.strip()
    raise CannotCompile(f"{cc} could not compile {program.what}: {complaints[-2000:]}")


def machine() -> str:
    """The processor's features: a cache folder may be shared between machines, and -march=native means this one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = ("flags", "Features", "model name", "CPU implementer", "CPU part")
    features = {line for line in lines if line.partition(":")[0].strip() in names}
    return " ".join([platform.machine(), *sorted(features)])
