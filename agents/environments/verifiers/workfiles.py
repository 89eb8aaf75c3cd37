"""Reading a hostile workspace: no links, no pipes, bounded sizes. Runs inside the sandbox, beside `verify.py`."""

# Paths are opened component by component, relative to descriptors.
# ruff: noqa: PTH118
import hashlib
import os
import stat

MAX_BYTES = 4 << 20
MAX_ENTRIES = 5000
MAX_DEPTH = 40


def _open(path: str) -> int:
    """A descriptor of a file below the current directory, no component of which is a link. OSError otherwise."""
    parts = path.split("/")
    if path.startswith("/") or not path or any(part in ("", ".", "..") for part in parts) or len(parts) > MAX_DEPTH:
        raise OSError(f"not a plain relative path: {path!r}")
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)


def read(path: str, limit: int = MAX_BYTES) -> bytes:
    """Bytes of a regular file. OSError for anything else and for more than `limit` bytes."""
    handle = _open(path)
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode) or state.st_size > limit:
            raise OSError(f"not a regular file of at most {limit} bytes: {path!r}")
        chunks: list[bytes] = []
        size = 0
        while size <= limit and (chunk := os.read(handle, 1 << 16)):
            chunks.append(chunk)
            size += len(chunk)
        if size > limit:
            raise OSError(f"grew while read: {path!r}")
        return b"".join(chunks)
    finally:
        os.close(handle)


def digest(path: str) -> str | None:
    """sha256 of a regular file, or None."""
    try:
        return hashlib.sha256(read(path)).hexdigest()
    except OSError:
        return None


def listing() -> list[str]:
    """Relative paths of all entries that are not folders, links included. OSError when there are too many."""
    found: list[str] = []
    for folder, _, names in os.walk(".", followlinks=False):
        found += [os.path.normpath(os.path.join(folder, name)) for name in names]
        if len(found) > MAX_ENTRIES:
            raise OSError("too many entries")
    return sorted(found)
