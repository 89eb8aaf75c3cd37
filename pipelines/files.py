"""Files that appear complete or not at all. Called by everything above that writes into a run or a checkpoint."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path

_counter = itertools.count()


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder; when the block ends well it is fsynced and renamed to `path`.

    Its name starts with `.tmp-`: what a killed writer leaves can be told and swept (`pipelines.store.locked`).
    """
    # The counter keeps two threads that write the same path apart; the last rename wins, with equal bytes.
    temporary = path.with_name(f".tmp-{os.getpid()}-{next(_counter)}-{path.name}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
