"""Reads a recipe from YAML: our own fields, or mergekit's. Called by the command `trajmill merge`.

mergekit's `dtype` is the type it computes in and writes; we compute in float32 always, so it becomes `out_dtype`.
`int8_mask` saves memory there and changes nothing: it is dropped. `tokenizer_source` (or `tokenizer.source`) becomes
`vocabulary`. What else we do not know is refused, with file, line and field.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelines.config import explain, malformed, read_yaml
from pipelines.merge.ema import ema_recipe
from schemas.errors import ConfigError
from schemas.merge import MergeRecipe


def load_recipe(path: Path) -> MergeRecipe:
    """The recipe in a YAML file; model folders are relative to it. Raises ConfigError naming file, line and field."""
    data, text = read_yaml(path)
    try:
        recipe = MergeRecipe.model_validate(_translated(data, path))
    except ValidationError as error:
        raise ConfigError(explain(list(malformed(error, MergeRecipe)), str(path), text)) from error

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


def _translated(data: dict[str, Any], path: Path) -> dict[str, Any]:
    found = dict(data)
    if "dtype" in found:
        dtype = found.pop("dtype")
        found.setdefault("out_dtype", dtype)
    tokenizer = found.pop("tokenizer", None)
    if tokenizer is not None:
        if not isinstance(tokenizer, dict) or set(tokenizer) != {"source"}:
            raise ConfigError(f"{path}: tokenizer: only its source can be chosen, not single tokens")
        found["tokenizer_source"] = tokenizer["source"]
    source = found.pop("tokenizer_source", None)
    if source is not None:
        if source not in ("base", "union"):
            raise ConfigError(f"{path}: tokenizer_source: {source!r} is neither base nor union")
        found["vocabulary"] = source
    if (template := found.pop("chat_template", "auto")) != "auto":
        raise ConfigError(f"{path}: chat_template: {template!r}: it is the base's (else the first model's) always")
    if isinstance(found.get("parameters"), dict):
        found["parameters"] = {k: v for k, v in found["parameters"].items() if k != "int8_mask"}
    return found


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
        problem = error.errors()[0]
        raise ConfigError(f"merge: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} is no number") from error
