"""Reads a run's configuration from YAML. The command line calls `load_config`, `merge.recipe_file` the rest.

Fields and defaults stand in schemas.recipe.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from agents.engine.files import SMOLLM2, find
from agents.environments import FAMILIES
from agents.scaffolds import SCAFFOLDS
from schemas.errors import ConfigError
from schemas.recipe import RunConfig, Settings

LEAST_LIFETIME_S = 1200.0
"""Of a sandbox: longer than tasks give an episode (15 minutes) and its verification, from a spare that was kept."""


def _line_of(node: yaml.Node | None, path: tuple[int | str, ...]) -> int | None:
    """1-based line of the deepest part of `path` that the document has."""
    line = node.start_mark.line + 1 if node else None
    for step in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(step)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            break
    return line


Problem = tuple[tuple[int | str, ...], str]
"""Path of a field, and what is wrong with it."""


def explain(problems: list[Problem], source: str, text: str) -> str:
    """Each problem with its field path and, for a file, its line."""
    node = yaml.compose(text, Loader=yaml.SafeLoader) if text else None
    lines = []
    for path, message in problems:
        line = _line_of(node, path)
        place = f"{source}:{line}" if line else source
        lines.append(f"{place}: {'.'.join(map(str, path)) or 'document'}: {message}")
    return "\n".join(lines)


def _fields(settings: type[BaseModel], *above: str) -> Iterator[tuple[str, ...]]:
    """Paths of all fields at any depth, without the numbers of list items."""
    for name, info in settings.model_fields.items():
        yield (*above, name)
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _fields(kind, *above, name)


def _meant(path: tuple[int | str, ...], settings: type[BaseModel]) -> str:
    """For a field that does not exist: the nearest that does, with its place when that is another one."""
    *above, name = (str(step) for step in path if isinstance(step, str))
    fields = list(_fields(settings))
    near = get_close_matches(name, sorted({field[-1] for field in fields}), n=1)
    if not near:
        return "no such field"
    found = [field for field in fields if field[-1] == near[0]]
    here = (*above, near[0]) in found
    return f"no such field; did you mean {near[0] if here else '.'.join(found[0])}?"


def malformed(error: ValidationError, settings: type[BaseModel]) -> Iterator[Problem]:
    """The fields that do not fit `settings`."""
    for problem in error.errors(include_url=False, include_input=False):
        unknown = problem["type"] == "extra_forbidden"
        yield (
            problem["loc"],
            _meant(problem["loc"], settings) if unknown else problem["msg"].removeprefix("Value error, "),
        )


def _impossible(config: RunConfig) -> Iterator[Problem]:
    """Names that no stage would find, told before the first stage has worked for nothing."""
    if not config.tasks.families:
        yield ("tasks", "families"), f"none; there are {', '.join(FAMILIES)}"
    for i, family in enumerate(config.tasks.families):
        if family not in FAMILIES:
            yield ("tasks", "families", i), f"no family {family!r}; there are {', '.join(FAMILIES)}"
    for i, play in enumerate(config.rollout.plays):
        for k, name in enumerate(play.scaffolds):
            if name not in SCAFFOLDS:
                place = ("rollout", "plays", i, "scaffolds", k)
                yield place, f"no scaffold {name!r}; there are {', '.join(SCAFFOLDS)}"
    if config.sandbox.lifetime_s < LEAST_LIFETIME_S:
        yield (
            ("sandbox", "lifetime_s"),
            f"below {LEAST_LIFETIME_S:g}: a slow model would fail where its time is not over",
        )
    try:
        # Shards need a tokenizer even where no episode samples from the embedded model.
        find(SMOLLM2 if config.engine.url else config.engine.model)
    except ConfigError as error:
        yield ("engine", "model"), str(error)


def read_yaml(path: Path) -> tuple[dict[str, Any], str]:
    """Fields and values of a YAML file, and its text. Raises ConfigError naming the file."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read: {e}") from e
    try:
        data = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as e:  # e.g. the 99th of May, or 1,000 brackets
        raise ConfigError(f"{path}: not YAML: {e}") from e
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected fields and values, found a {type(data).__name__}")
    return data, text


S = TypeVar("S", bound=Settings)


def load_settings(kind: type[S], path: Path | None = None, **overrides: Any) -> S:
    """Settings of a kind from the YAML file `path` (None: all defaults), the given top-level fields replaced.

    Raises ConfigError naming file, line and field.
    """
    data, text = read_yaml(path) if path else ({}, "")
    try:
        return kind.model_validate({**data, **{k: v for k, v in overrides.items() if v is not None}})
    except ValidationError as e:
        raise ConfigError(explain(list(malformed(e, kind)), str(path or "command line"), text)) from e


def load_config(path: Path | None = None, **overrides: Any) -> RunConfig:
    """The configuration in the YAML file `path` (None: all defaults), with the given top-level fields replaced.

    Raises ConfigError naming file, line and field.
    """
    config = load_settings(RunConfig, path, **overrides)
    if problems := list(_impossible(config)):
        text = path.read_text("utf-8") if path else ""
        raise ConfigError(explain(problems, str(path or "command line"), text))
    return config
