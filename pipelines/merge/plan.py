"""From a recipe to everything that a merge will write, by reading headers and configurations only.

Called by `pipelines.merge.run` before anything is written: all that does not fit together is found here and listed in
one MergeError.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.merge.dtypes import FLOATS, NAMES
from pipelines.merge.methods import linear_weights
from pipelines.merge.tensors import Tensor, read_header
from schemas.errors import MergeError
from schemas.recipe import MergeRecipe

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_LISTED = 20

# Fields of config.json that shapes do not tell: equal shapes with other heads or another rope are another function.
_CONFIG = (
    "model_type", "hidden_act", "hidden_size", "head_dim", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings",
    "vocab_size", "sliding_window",
)  # fmt: skip


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


@dataclass(frozen=True)
class Output:
    """One tensor to write and the tensors it is made of, one per model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[Tensor, ...]


@dataclass(frozen=True)
class Plan:
    """What a merge will write: outputs by file, in the order in which they lie there. `weights`: of linear."""

    recipe: MergeRecipe
    models: tuple[Checkpoint, ...]
    files: dict[str, list[Output]]
    weights: tuple[float, ...] | None


def plan(recipe: MergeRecipe) -> Plan:
    """Read all headers and check that the checkpoints fit. Raises MergeError with every misfit found."""
    models = tuple(read_checkpoint(Path(model).expanduser()) for model in recipe.models)
    problems = [*_recipe_problems(recipe), *_mismatches(models)]
    if problems:
        shown = problems[:_LISTED]
        more = [f"and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
        raise MergeError("the checkpoints cannot be merged:\n" + "\n".join(f"- {line}" for line in [*shown, *more]))
    weights = linear_weights(len(models), recipe.weights) if recipe.method == "linear" else None
    return Plan(recipe, models, _outputs(recipe, models), weights)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Headers and configuration of a checkpoint, single file or sharded with an index."""
    if (folder / INDEX).exists():
        layout = _indexed(folder)
    elif (folder / _SINGLE).exists():
        layout = [_SINGLE]
    else:
        raise MergeError(f"{folder}: neither {_SINGLE} nor {INDEX} is there")
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
        folder, tensors, names, _read_object(folder / "config.json"), _read_object(folder / "lineage.json") or None
    )


def _read_object(path: Path) -> dict[str, Any]:
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
    entries = _read_object(folder / INDEX).get("weight_map")
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


def _recipe_problems(recipe: MergeRecipe) -> Iterator[str]:
    if recipe.method == "slerp":
        if len(recipe.models) != 2:
            yield f"slerp takes two models, not {len(recipe.models)}"
        if recipe.weights is not None:
            yield "slerp takes t, not weights"
        return
    try:
        linear_weights(len(recipe.models), recipe.weights)
    except ValueError as error:
        yield str(error)


def _mismatches(models: Sequence[Checkpoint]) -> Iterator[str]:
    first = models[0]
    if not first.tensors:
        yield f"{first.folder}: no tensors"
    for tensor in first.tensors.values():
        if tensor.dtype not in FLOATS:
            yield f"{tensor.name}: {tensor.dtype} cannot be averaged, only {', '.join(FLOATS)}"
    for other in models[1:]:
        yield from _config_mismatches(first, other)
        yield from _tensor_mismatches(first, other)


def _config_mismatches(first: Checkpoint, other: Checkpoint) -> Iterator[str]:
    if first.config and other.config:
        for field in _CONFIG:
            ours, theirs = first.config.get(field), other.config.get(field)
            if ours != theirs:
                yield f"config.json, {field}: {ours} in {first.folder}, {theirs} in {other.folder}"
    ours, theirs = _vocabulary(first.folder), _vocabulary(other.folder)
    if ours and theirs and ours != theirs:
        differing = len(ours.items() ^ theirs.items())
        yield f"tokenizer.json: {differing} entries of the vocabularies of {first.folder} and {other.folder} differ"


def _vocabulary(folder: Path) -> dict[str, int]:
    """Ids by token, where the folder has a tokenizer.json with a vocabulary by name."""
    tokenizer = _read_object(folder / "tokenizer.json")
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict):
        return {}
    return vocabulary | {t["content"]: t["id"] for t in tokenizer.get("added_tokens") or []}


def _tensor_mismatches(first: Checkpoint, other: Checkpoint) -> Iterator[str]:
    for name in sorted(first.tensors.keys() | other.tensors.keys()):
        ours, theirs = first.tensors.get(name), other.tensors.get(name)
        if ours is None or theirs is None:
            there, missing = (first, other) if theirs is None else (other, first)
            tied = " (its output head is tied to the embedding)" if name == "lm_head.weight" else ""
            yield f"{name}: in {there.folder}, not in {missing.folder}{tied}"
            continue
        if ours.shape != theirs.shape:
            yield f"{name}: shape {list(ours.shape)} in {first.folder}, {list(theirs.shape)} in {other.folder}"
        if ours.dtype != theirs.dtype:
            yield f"{name}: dtype {ours.dtype} in {first.folder}, {theirs.dtype} in {other.folder}"


def _outputs(recipe: MergeRecipe, models: Sequence[Checkpoint]) -> dict[str, list[Output]]:
    """The first model's layout, each file's tensors by falling width and name, so that all are aligned."""
    first = models[0]
    files = {}
    for file, names in first.layout.items():
        outputs = [
            Output(name, NAMES[recipe.dtype] if recipe.dtype else tensor.dtype, tensor.shape, sources)
            for name in names
            for tensor, sources in [(first.tensors[name], tuple(model.tensors[name] for model in models))]
        ]
        files[file] = sorted(outputs, key=lambda o: (-FLOATS[o.dtype].itemsize, o.name))
    return files
