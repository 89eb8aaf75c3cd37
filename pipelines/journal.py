"""The journal of finished episodes: append-only files that a kill at any byte cannot spoil. For the rollout stage.

A record is one line: crc32 of the JSON in eight hex digits, a space, the JSON, a newline. It counts once `append` has
returned (written and fsynced). A torn last line is ignored when reading; every writer has a file of its own, so nothing
is ever written behind one.
"""

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from schemas.episode import Episode


class JournalWriter:
    """Appends episodes to a new file in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{uuid4().hex}.log").open("xb")
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def append(self, episode: Episode) -> None:
        """Make the episode durable."""
        data = episode.model_dump_json().encode()
        self._file.write(b"%08x %s\n" % (zlib.crc32(data), data))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_lines(path: Path) -> Iterator[bytes]:
    """The JSON of every whole record of one journal file."""
    with path.open("rb") as file:
        for line in file:
            head, _, data = line.rstrip(b"\n").partition(b" ")
            if line.endswith(b"\n") and head == b"%08x" % zlib.crc32(data):
                yield data


def files(folder: Path) -> list[Path]:
    """Journal files, sorted."""
    return sorted(folder.glob("*.log"))
