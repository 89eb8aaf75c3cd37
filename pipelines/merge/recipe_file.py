"""Reads a recipe from YAML: our own fields, or mergekit's. Called by the command `trajmill merge`.

mergekit's `dtype` is the type it computes in and writes; we compute in float32 always, so it becomes `out_dtype` where
that is not set. `int8_mask` saves memory there and changes nothing: it is dropped. `tokenizer_source` (or
`tokenizer.source`) becomes `vocabulary`. A null is what it is there: as good as absent. What else we do not know is
refused, with file, line and field.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelines.config import Problem, explain, malformed, read_yaml
from pipelines.merge.ema import ema_recipe
from schemas.errors import ConfigError
from schemas.merge import MergeRecipe


def load_recipe(path: Path) -> MergeRecipe:
    """The recipe in a YAML file; model folders are relative to it. Raises ConfigError naming file, line and field."""
    data, text = read_yaml(path)
    fields, problems = _translated(data)
    try:
        recipe = MergeRecipe.model_validate(fields)
    except ValidationError as error:
        problems += malformed(error, MergeRecipe)
    if problems:
        # What was moved is named by the words of the file.
        said = [(("dtype",) if at == ("out_dtype",) and data.get(at[0]) is None else at, why) for at, why in problems]
        raise ConfigError(explain(said, str(path), text))

    def place(model: str) -> str:
        return str(path.parent / Path(model).expanduser())

    return recipe.model_copy(
        update={
            "base_model": recipe.base_model and place(recipe.base_model),
            "models": [s.model_copy(update={"model": place(s.model)}) for s in recipe.models],
            "slices": [
                part.model_copy(
                    update={"sources": [s.model_copy(update={"model": place(s.model)}) for s in part.sources]}
                )
                for part in recipe.slices
            ],
        }
    )


def _translated(data: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """mergekit's fields in our words, and what of them we cannot do."""
    found, problems = _without_nulls(data, "modules", "out_dtype"), list[Problem]()
    dtype = found.pop("dtype", None)
    if dtype is not None:
        found.setdefault("out_dtype", dtype)
    if found.pop("chat_template", None) not in (None, "auto"):
        problems.append((("chat_template",), "only auto: it is the base's (else the first model's) always"))
    vocabularies, more = _vocabularies(found.pop("tokenizer_source", None), found.pop("tokenizer", None))
    problems += more
    if vocabularies:
        if len(vocabularies) + ("vocabulary" in found) > 1:
            problems.append((vocabularies[0][0], "the vocabulary is set twice"))
        found["vocabulary"] = vocabularies[0][1]
    if isinstance(found.get("parameters"), dict):
        found["parameters"] = {k: v for k, v in found["parameters"].items() if k != "int8_mask"}
    if isinstance(found.get("slices"), list):
        found["slices"] = [_without_nulls(part, "base_model", "residual_weight") for part in found["slices"]]
    return found, problems


def _without_nulls(value: Any, *names: str) -> Any:
    """An object without those of these fields that are null; anything else as it is."""
    if not isinstance(value, dict):
        return value
    return {k: v for k, v in value.items() if not (k in names and v is None)}


def _vocabularies(source: Any, tokenizer: Any) -> tuple[list[tuple[tuple[str, ...], Any]], list[Problem]]:
    """Each choice of a vocabulary with its place, and what is no such choice."""
    chosen: list[tuple[tuple[str, ...], Any]] = []
    problems: list[Problem] = []
    if source is not None:
        chosen.append((("tokenizer_source",), source))
    if isinstance(tokenizer, dict):
        chosen.append((("tokenizer", "source"), tokenizer.get("source", "union")))
        unread = [str(k) for k, v in tokenizer.items() if k != "source" and v not in (None, {})]
        problems += [(("tokenizer", k), "only its source can be chosen") for k in unread]
    elif tokenizer is not None:
        problems.append((("tokenizer",), "not an object with a source"))
    problems += [(at, f"{value!r} is neither base nor union") for at, value in chosen if value not in ("base", "union")]
    return [(at, value) for at, value in chosen if value in ("base", "union")], problems


def recipe_of(
    models: list[str],
    *,
    method: str | None,
    base: str | None,
    weights: str | None,
    parameters: list[str],
    ema: float | None,
    dtype: str | None,
    seed: int,
) -> MergeRecipe:
    """The recipe that a command line says. Raises ConfigError naming the option."""
    if ema is not None:
        if method or base or weights or parameters:
            raise ConfigError("--ema: an average along a run has no --method, --base, --weights or --set")
        recipe = ema_recipe(models, ema)
        return MergeRecipe.model_validate(recipe.model_dump() | {"out_dtype": dtype, "seed": seed})
    if method is None:
        raise ConfigError("--method: say how to merge, or give a recipe (YAML)")
    numbers = [_number("--weights", w) for w in weights.split(",")] if weights else []
    if numbers and len(numbers) != len(models):
        raise ConfigError(f"--weights: {len(numbers)} weights for {len(models)} models")
    sources = [
        {"model": model, "parameters": {"weight": numbers[i]} if numbers else {}} for i, model in enumerate(models)
    ]
    pairs = [item.partition("=") for item in parameters]
    given = {name.strip(): _number(f"--set {name}", value) for name, _, value in pairs}
    try:
        return MergeRecipe.model_validate(
            {
                "method": method,
                "base_model": base,
                "models": sources,
                "parameters": given,
                "out_dtype": dtype,
                "seed": seed,
            }
        )
    except ValidationError as error:
        raise ConfigError(explain(list(malformed(error, MergeRecipe)), "merge", "")) from error


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} is no number") from error
