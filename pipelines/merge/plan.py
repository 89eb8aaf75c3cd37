"""From a recipe to everything that a merge will write, by reading headers and configurations only.

Called by `pipelines.merge.run` before anything is written: all that does not fit together is found here and listed in
one MergeError.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.merge import parameters
from pipelines.merge.checkpoint import Checkpoint, read_checkpoint, read_object
from pipelines.merge.dtypes import FLOATS, NAMES
from pipelines.merge.methods import METHODS
from pipelines.merge.methods.base import MethodSpec
from pipelines.merge.tensors import Tensor
from pipelines.merge.vocabulary import Vocabulary, reconcile
from schemas.errors import MergeError
from schemas.ids import content_id
from schemas.merge import MergeRecipe, Slice, Source

_LISTED = 20
_SHARD_BYTES = 2 * 10**9

# Fields of config.json that shapes do not tell: equal shapes with other heads or another rope are another function.
_CONFIG = (
    "model_type", "hidden_act", "hidden_size", "head_dim", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings",
    "vocab_size", "sliding_window",
)  # fmt: skip
_COPIED = (
    "config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*",
    "merges.txt", "chat_template*",
)  # fmt: skip
_LAYER = re.compile(r"^((?:.*\.)?(?:layers|h|blocks)\.)(\d+)(\..+)$")
_PER_TOKEN = ("embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True)
class Output:
    """One tensor to write, what it is made of, and the parameters of the method for it.

    `models` without the base, `parameters` as many. `per_token`: its rows are gathered by the plan's vocabulary.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    models: tuple[Tensor, ...]
    base: Tensor | None
    parameters: tuple[Mapping[str, float], ...]
    options: Mapping[str, float]
    per_token: bool


@dataclass(frozen=True)
class Plan:
    """What a merge will write: outputs by file, in the order in which they lie there.

    `checkpoints`: the base, else the first model, before the others; it gives layout, configuration and tokenizer.
    `config`: the config.json to write, empty when there is none. `digest` changes with the recipe and the checkpoints.
    """

    recipe: MergeRecipe
    checkpoints: tuple[Checkpoint, ...]
    files: dict[str, list[Output]]
    vocabulary: Vocabulary | None
    config: dict[str, Any]
    digest: str


@dataclass(frozen=True)
class _Input:
    """A tensor name in one source: `layer` of `layers`, counted within `part`."""

    source: Source
    name: str
    layer: int | None
    layers: int
    part: Slice | None


@dataclass(frozen=True)
class _Need:
    """An output's name, and the names of its inputs in the models and in the base."""

    name: str
    inputs: tuple[_Input, ...]
    base: str | None


def plan(recipe: MergeRecipe) -> Plan:
    """Read all headers and check that the checkpoints fit. Raises MergeError with every misfit found."""
    spec = METHODS[recipe.method]
    given = folder_of(recipe.base_model) if recipe.base_model is not None else None
    folders = dict.fromkeys([*([given] if given else []), *(folder_of(s.model) for s in _sources(recipe))])
    base = None if spec.base == "a model" else given
    read = {folder: read_checkpoint(folder) for folder in folders}
    checkpoints = tuple(read.values())
    problems = [*_recipe_problems(recipe, spec, base), *_mismatches(recipe, checkpoints)]
    needs: list[_Need] = []
    if recipe.slices:
        problems += _slice_problems(recipe, read)
        needs = _sliced(recipe, read, base) if not problems else []
    else:
        needs = _whole(recipe, checkpoints, base)
        problems += [line for other in checkpoints[1:] for line in _missing(checkpoints[0], other)]
    vocabulary = None
    if not problems:
        try:
            vocabulary = reconcile(recipe, list(folders), [_token_rows(c) for c in checkpoints])
        except MergeError as error:
            problems.append(str(error))
    outputs: list[Output] = []
    for need in needs:
        try:
            outputs += _output(recipe, spec, read, base, need, vocabulary)
        except MergeError as error:
            problems += str(error).splitlines()
    if problems:
        found = list(dict.fromkeys(problems))
        shown = found[:_LISTED]
        more = [f"and {len(found) - len(shown)} more"] if len(found) > len(shown) else []
        raise MergeError("the checkpoints cannot be merged:\n" + "\n".join(f"- {line}" for line in [*shown, *more]))
    files = _by_size(outputs) if recipe.slices else _as_in(checkpoints[0], outputs)
    return Plan(recipe, checkpoints, files, vocabulary, _config(recipe, read, vocabulary), _digest(recipe, checkpoints))


def folder_of(model: str) -> Path:
    """A model's folder as the plan names it."""
    return Path(model).expanduser()


def _sources(recipe: MergeRecipe) -> list[Source]:
    return [*_models(recipe), *(source for part in recipe.slices for source in part.sources)]


def _models(recipe: MergeRecipe) -> list[Source]:
    """The models, and after them the base where the method takes it as one and it does not stand among them."""
    base = recipe.base_model
    if base is None or not recipe.models or METHODS[recipe.method].base != "a model":
        return recipe.models
    listed = {folder_of(source.model) for source in recipe.models}
    return recipe.models if folder_of(base) in listed else [*recipe.models, Source(model=base)]


def _recipe_problems(recipe: MergeRecipe, spec: MethodSpec, base: Path | None) -> Iterator[str]:
    yield from parameters.unknown(recipe, spec)
    if spec.base == "required" and base is None:
        yield f"{recipe.method} needs a base_model"
    weighted = "weight" in spec.model_parameters and "weight" not in recipe.parameters
    if weighted and len(_models(recipe)) > len(recipe.models):
        yield f"base_model: {recipe.method} averages it too: put it among the models, or set a weight for all"
    fewest, most = spec.models
    groups: list[Sequence[Source]] = [part.sources for part in recipe.slices] or [_models(recipe)]
    for sources in groups:
        count = sum(folder_of(source.model) != base for source in sources)
        if count < fewest or (most is not None and count > most):
            limits = f"{fewest}" if fewest == most else f"{fewest} or more" if most is None else f"{fewest} to {most}"
            yield f"{recipe.method} takes {limits} models{' besides the base' if base else ''}, not {count}"


def _mismatches(recipe: MergeRecipe, models: Sequence[Checkpoint]) -> Iterator[str]:
    for model in models:
        if not model.tensors:
            yield f"{model.folder}: no tensors"
        for tensor in model.tensors.values():
            if tensor.dtype not in FLOATS:
                yield f"{tensor.name}: {tensor.dtype} cannot be averaged, only {', '.join(FLOATS)} (in {model.folder})"
    first = models[0]
    ignored = {"num_hidden_layers"} if recipe.slices else set()
    ignored |= {"vocab_size"} if recipe.vocabulary != "same" else set()
    for other in models[1:]:
        if first.config and other.config:
            for field in _CONFIG:
                ours, theirs = first.config.get(field), other.config.get(field)
                if ours != theirs and field not in ignored:
                    yield f"config.json, {field}: {ours} in {first.folder}, {theirs} in {other.folder}"
        if recipe.vocabulary == "same":
            yield from _vocabulary_mismatch(first.folder, other.folder)


def _vocabulary_mismatch(first: Path, other: Path) -> Iterator[str]:
    ours, theirs = _tokens(first), _tokens(other)
    if ours and theirs and ours != theirs:
        differing = len(ours.items() ^ theirs.items())
        yield f"tokenizer.json: {differing} entries of the vocabularies of {first} and {other} differ"


def _tokens(folder: Path) -> dict[str, int]:
    """Ids by token, where the folder has a tokenizer.json with a vocabulary by name."""
    tokenizer = read_object(folder / "tokenizer.json")
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict):
        return {}
    return vocabulary | {t["content"]: t["id"] for t in tokenizer.get("added_tokens") or []}


def _missing(first: Checkpoint, other: Checkpoint) -> Iterator[str]:
    for name in sorted(first.tensors.keys() ^ other.tensors.keys()):
        there, missing = (first, other) if name in first.tensors else (other, first)
        tied = " (its output head is tied to the embedding)" if name == "lm_head.weight" else ""
        yield f"{name}: in {there.folder}, not in {missing.folder}{tied}"


def _layer(name: str) -> int | None:
    match = _LAYER.match(name)
    return int(match[2]) if match else None


def _layers(checkpoint: Checkpoint) -> int:
    """Number of layers, by the tensors' names."""
    return max((layer + 1 for layer in map(_layer, checkpoint.tensors) if layer is not None), default=0)


def _whole(recipe: MergeRecipe, checkpoints: Sequence[Checkpoint], base: Path | None) -> list[_Need]:
    """Every tensor that all models have."""
    sources = [source for source in _models(recipe) if folder_of(source.model) != base]
    layers = _layers(checkpoints[0])
    return [
        _Need(name, tuple(_Input(s, name, _layer(name), layers, None) for s in sources), name if base else None)
        for name in checkpoints[0].tensors
        if all(name in checkpoint.tensors for checkpoint in checkpoints)
    ]


def _slice_problems(recipe: MergeRecipe, read: Mapping[Path, Checkpoint]) -> Iterator[str]:
    for i, part in enumerate(recipe.slices):
        lengths = {source.layer_range[1] - source.layer_range[0] for source in part.sources}
        if len(lengths) > 1:
            yield f"slices.{i}: its sources have {', '.join(map(str, sorted(lengths)))} layers"
        for source in part.sources:
            layers = _layers(read[folder_of(source.model)])
            if source.layer_range[1] > layers:
                yield f"slices.{i}: layer_range {list(source.layer_range)}, but {source.model} has {layers} layers"


def _sliced(recipe: MergeRecipe, read: Mapping[Path, Checkpoint], base: Path | None) -> list[_Need]:
    """The layers of the slices; the embedding from the first slice's sources, the rest from the last one's."""
    needs: list[_Need] = []

    def outside(part: Slice, embedding: bool) -> None:
        sources = [s for s in part.sources if folder_of(s.model) != base]
        for name in sorted({n for s in sources for n in read[folder_of(s.model)].tensors if _layer(n) is None}):
            if ("embed" in name) is embedding:
                inputs = tuple(_Input(s, name, None, 0, part) for s in sources)
                needs.append(_Need(name, inputs, name if base else None))

    outside(recipe.slices[0], True)
    result = 0
    for part in recipe.slices:
        sources = [s for s in part.sources if folder_of(s.model) != base]
        low, high = sources[0].layer_range
        # A base that is no source of the slice gives the layers that the first source gives.
        below = next((s.layer_range[0] for s in part.sources if folder_of(s.model) == base), low)
        for layer in range(high - low):
            patterns = {
                (match[1], match[3]): None
                for s in sources
                for name in sorted(read[folder_of(s.model)].tensors)
                if (match := _LAYER.match(name)) and int(match[2]) == s.layer_range[0] + layer
            }
            for prefix, rest in patterns:
                inputs = tuple(
                    _Input(s, f"{prefix}{s.layer_range[0] + layer}{rest}", layer, high - low, part) for s in sources
                )
                of_base = f"{prefix}{below + layer}{rest}" if base else None
                needs.append(_Need(f"{prefix}{result}{rest}", inputs, of_base))
            result += 1
    outside(recipe.slices[-1], False)
    return needs


def _output(
    recipe: MergeRecipe,
    spec: MethodSpec,
    read: Mapping[Path, Checkpoint],
    base: Path | None,
    need: _Need,
    vocabulary: Vocabulary | None,
) -> Iterator[Output]:
    """The planned tensor. Raises MergeError for inputs that are missing or of other shapes, and for parameters."""
    wanted = [(base, need.base)] if base and need.base else []
    wanted += [(folder_of(i.source.model), i.name) for i in need.inputs]
    found = [read[folder].tensors.get(name) for folder, name in wanted]
    missing = [f"{name}: not in {folder}" for (folder, name), t in zip(wanted, found, strict=True) if t is None]
    if missing:
        raise MergeError("\n".join(missing))
    tensors = [tensor for tensor in found if tensor is not None]
    first = tensors[0]
    per_token = need.name.endswith(_PER_TOKEN) and len(first.shape) == 2
    rows = 1 if per_token and recipe.vocabulary != "same" else 0  # reconciled
    wrong = [
        f"{need.name}: shape {list(first.shape)} in {first.file.parent}, {list(t.shape)} in {t.file.parent}"
        for t in tensors
        if t.shape[rows:] != first.shape[rows:] or len(t.shape) != len(first.shape)
    ]
    if wrong:
        raise MergeError("\n".join(wrong))
    own = tuple(
        parameters.model_parameters(recipe, i.source, i.name, i.layer, i.layers, spec.model_parameters, i.part)
        for i in need.inputs
    )
    # At least one: a recipe with the base alone is refused by the number of models.
    at = need.inputs[0] if need.inputs else _Input(Source(model=""), need.name, None, 0, None)
    options = parameters.method_options(recipe, need.name, at.layer, at.layers, spec.options, at.part)
    gathered = vocabulary if per_token else None
    yield Output(
        need.name,
        NAMES[recipe.out_dtype] if recipe.out_dtype else first.dtype,
        (gathered.size, first.shape[1]) if gathered else first.shape,
        tuple(tensors[1:] if base else tensors),
        first if base else None,
        own,
        options,
        gathered is not None,
    )


def _token_rows(checkpoint: Checkpoint) -> int:
    """Rows of the embedding; 0 without one."""
    return next((t.shape[0] for n, t in checkpoint.tensors.items() if n.endswith(_PER_TOKEN) and t.shape), 0)


def _aligned(outputs: Sequence[Output]) -> list[Output]:
    """By falling width and name, so that all are aligned in the file."""
    return sorted(outputs, key=lambda o: (-FLOATS[o.dtype].itemsize, o.name))


def _as_in(first: Checkpoint, outputs: Sequence[Output]) -> dict[str, list[Output]]:
    """The first checkpoint's layout."""
    by_name = {output.name: output for output in outputs}
    return {file: _aligned([by_name[name] for name in names]) for file, names in first.layout.items()}


def _by_size(outputs: Sequence[Output]) -> dict[str, list[Output]]:
    """Shards of at most _SHARD_BYTES, or of one tensor."""
    shards: list[list[Output]] = [[]]
    filled = 0
    for output in outputs:
        size = output_bytes(output)
        if shards[-1] and filled + size > _SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(output)
        filled += size
    if len(shards) == 1:
        return {"model.safetensors": _aligned(shards[0])}
    return {f"model-{i:05d}-of-{len(shards):05d}.safetensors": _aligned(s) for i, s in enumerate(shards, 1)}


def output_bytes(output: Output) -> int:
    """Size of an output in its file."""
    values = 1
    for length in output.shape:
        values *= length
    return values * FLOATS[output.dtype].itemsize


def _config(recipe: MergeRecipe, read: Mapping[Path, Checkpoint], vocabulary: Vocabulary | None) -> dict[str, Any]:
    config = dict(next(iter(read.values())).config)
    if not config:
        return {}
    if recipe.out_dtype:
        names = [name for name in ("dtype", "torch_dtype") if name in config] or ["torch_dtype"]
        config |= dict.fromkeys(names, recipe.out_dtype)
    if vocabulary:
        config["vocab_size"] = vocabulary.size
    if recipe.slices:
        ranges = [(folder_of(part.sources[0].model), part.sources[0].layer_range) for part in recipe.slices]
        config["num_hidden_layers"] = sum(high - low for _, (low, high) in ranges)
        if "layer_types" in config:
            types = [read[folder].config.get("layer_types", [])[low:high] for folder, (low, high) in ranges]
            config["layer_types"] = [kind for some in types for kind in some]
    return config


def _digest(recipe: MergeRecipe, checkpoints: Sequence[Checkpoint]) -> str:
    """Of the recipe and of all that it reads: headers, sizes and times of change."""
    parents = [
        [
            str(checkpoint.folder.resolve()),
            [[t.file.name, t.name, t.dtype, list(t.shape), t.offset] for t in checkpoint.tensors.values()],
            [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in [*checkpoint.files, *copied(checkpoint)]],
        ]
        for checkpoint in checkpoints
    ]
    return content_id("merge", recipe.model_dump(mode="json"), parents)


def copied(checkpoint: Checkpoint) -> list[Path]:
    """Files beside the weights that belong to a model: configuration and tokenizer, by name."""
    return sorted({p for pattern in _COPIED for p in checkpoint.folder.glob(pattern) if p.is_file()})
