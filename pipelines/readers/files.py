"""Which files of an input folder are logs, what they are called, and whose they are. Called by the ingest stage."""

import os
from pathlib import Path
from typing import Any

from pipelines.readers.common import word
from schemas.errors import InputError

_DOCUMENTS = ("readme", "license", "licence", "notice")


def input_files(root: Path) -> list[Path]:
    """Every file to read below `root` (or `root` itself), sorted by relative path.

    Left out: hidden files and folders, README, LICENSE and NOTICE files, links (what they name is read in its own
    place, or lies outside) and what is no regular file. Everything else is returned: a file that no reader knows
    becomes a reject, not silence. InputError for a root that is not there and for a folder that cannot be listed.
    """
    if not root.exists():
        raise InputError(f"{root}: no such file or folder")
    if root.is_file():
        return [root]
    found = []
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(folder) / name
            if not (name.startswith(".") or Path(name.lower()).stem in _DOCUMENTS) and _is_regular(path):
                found.append(path)
    return sorted(found, key=lambda path: path.relative_to(root).parts)


def _refuse(error: OSError) -> None:
    raise InputError(f"{error.filename}: the folder cannot be listed") from error


def _is_regular(path: Path) -> bool:
    return not path.is_symlink() and path.is_file()


def relative_name(path: Path, root: Path) -> str:
    """`path` below `root` as POSIX text; its own name when it is the root, or not below it."""
    name = path.relative_to(root).as_posix() if path != root and path.is_relative_to(root) else path.name
    return name.encode("utf-8", "replace").decode()


def partner_of(path: Path, root: Path, record_field: Any = None) -> str:
    """Who returned a log: what its record names, else the first folder below `root`, else the root's own name."""
    named = word(record_field)
    if named:
        return named
    parts = path.relative_to(root).parts if path != root and path.is_relative_to(root) else ()
    own = root.resolve()
    name = parts[0] if len(parts) > 1 else (own.parent.name if own.is_file() else own.name) or "input"
    return name.encode("utf-8", "replace").decode()
