"""A folder of safetensors, by its headers and configuration only. Called by `plan`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.merge.tensors import Tensor, read_header
from schemas.errors import MergeError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A folder of safetensors. `layout`: tensor names by file name. `lineage`: its own, null when it has none."""

    folder: Path
    tensors: dict[str, Tensor]
    layout: dict[str, list[str]]
    config: dict[str, Any]
    lineage: dict[str, Any] | None

    @property
    def files(self) -> list[Path]:
        """Weight files, by name."""
        return [self.folder / name for name in self.layout]

    @property
    def sharded(self) -> bool:
        """Whether an index says what is where."""
        return (self.folder / INDEX).exists()


def read_checkpoint(folder: Path) -> Checkpoint:
    """Headers and configuration of a checkpoint, single file or sharded with an index."""
    if (folder / INDEX).exists():
        layout = _indexed(folder)
    elif (folder / SINGLE).exists():
        layout = [SINGLE]
    else:
        raise MergeError(f"{folder}: neither {SINGLE} nor {INDEX} is there")
    tensors: dict[str, Tensor] = {}
    names: dict[str, list[str]] = {}
    for file in layout:
        header = read_header(folder / file)
        if twice := tensors.keys() & header.keys():
            raise MergeError(f"{folder}: tensor {min(twice)} stands in two files")
        tensors |= header
        names[file] = list(header)
    if (folder / INDEX).exists():
        _check_index(folder, tensors)
    return Checkpoint(
        folder, tensors, names, read_object(folder / "config.json"), read_object(folder / "lineage.json") or None
    )


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise MergeError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise MergeError(f"{path}: not a JSON object")
    return value


def _weight_map(folder: Path) -> dict[str, str]:
    entries = read_object(folder / INDEX).get("weight_map")
    if not isinstance(entries, dict) or not all(isinstance(file, str) for file in entries.values()):
        raise MergeError(f"{folder / INDEX}: no weight_map of names to files")
    return entries


def _indexed(folder: Path) -> list[str]:
    files = sorted(set(_weight_map(folder).values()))
    for file in files:
        # An index is outside input: a name with a separator would read or write elsewhere.
        if Path(file).name != file or not (folder / file).is_file():
            raise MergeError(f"{folder / INDEX}: there is no file {file} in the folder")
    return files


def _check_index(folder: Path, tensors: dict[str, Tensor]) -> None:
    entries = _weight_map(folder)
    found = {name: tensor.file.name for name, tensor in tensors.items()}
    wrong = sorted(name for name in entries.keys() | found.keys() if entries.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise MergeError(f"{folder}: the index has {name} in {entries.get(name)}, the files in {found.get(name)}")
