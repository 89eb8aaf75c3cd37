"""Reads and writes below a sandbox's folder without following anything the agent may have put there. Called by host.py.

Every path is opened with openat2 below a directory descriptor that the sandbox's PID 1 sent, so that links, `..` and
/proc magic links cannot lead out of it. (Going through /proc/PID/root instead once read a host's shadow file.)
"""

import ctypes
import os
import secrets
import stat
from pathlib import PurePosixPath

SYS_OPENAT2 = 437
BENEATH = 0x08 | 0x04 | 0x02 | 0x01
"""RESOLVE_BENEATH, NO_SYMLINKS, NO_MAGICLINKS, NO_XDEV."""

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_below(folder: int, path: bytes, flags: int) -> int:
    """openat2 with every escape closed. Raises OSError as open does; ELOOP for links, EXDEV for what leads out."""
    how = _OpenHow(flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0, BENEATH)
    descriptor = _libc.syscall(
        ctypes.c_long(SYS_OPENAT2),
        ctypes.c_int(folder),
        ctypes.c_char_p(path),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fsdecode(path))
    return int(descriptor)


def parts_below(path: str) -> tuple[str, ...]:
    """The parts of a relative path. Raises ValueError when it is empty, absolute, or has `..` or NUL in it."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} is not a relative path that stays below the root")
    return parts


def read_below(folder: int, path: str, limit: int) -> bytes | None:
    """A regular file of at most `limit` bytes, or None for anything else: absent, a link, FIFO, device, unreadable."""
    try:
        name = b"/".join(os.fsencode(part) for part in parts_below(path))
        descriptor = open_below(folder, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    st = os.fstat(descriptor)
    if not stat.S_ISREG(st.st_mode) or st.st_size > limit:
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as stream:
        data = stream.read(limit + 1)
    return data if len(data) <= limit else None


def write_below(folder: int, path: str, data: bytes, *, owner: int | None, executable: bool) -> None:
    """Write a file, making folders; what was at its place (a link, a FIFO) is replaced, never written through.

    `owner` is the host id that files and folders get, None to leave them ours. Raises ValueError when a part of the
    path is a link or leads out, OSError for the rest (a full disk).
    """
    *folders, name = parts_below(path)
    parent = os.dup(folder)
    try:
        for part in folders:
            parent = _enter(parent, part, owner)
        scratch = f".put-{secrets.token_hex(8)}"  # unguessable: an agent must not be able to stand in its way
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                if owner is not None:
                    os.fchown(descriptor, owner, owner)
                os.fchmod(descriptor, 0o755 if executable else 0o644)
            os.rename(scratch, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            _discard(parent, scratch)
            raise
    finally:
        os.close(parent)


def _enter(parent: int, part: str, owner: int | None) -> int:
    """Open a folder below `parent` in exchange for `parent`, making it when it is absent."""
    made = True
    try:
        os.mkdir(part, 0o755, dir_fd=parent)
    except FileExistsError:
        made = False
    try:
        child = open_below(parent, os.fsencode(part), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ValueError(f"{part!r} is not a folder that stays below the root: {error.strerror}") from error
    if made:
        os.fchmod(child, 0o755)
        if owner is not None:
            os.fchown(child, owner, owner)
    os.close(parent)
    return child


def _discard(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
