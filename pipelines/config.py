"""Reads a run's configuration from YAML. The command line calls `load_config`.

Fields and defaults stand in schemas.recipe.
"""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from schemas.errors import ConfigError
from schemas.recipe import RunConfig


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


def _explain(error: ValidationError, source: str, text: str) -> str:
    """Each problem with its field path and, for a file, its line."""
    node = yaml.compose(text, Loader=yaml.SafeLoader) if text else None
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        line = _line_of(node, problem["loc"])
        place = f"{source}:{line}" if line else source
        lines.append(f"{place}: {'.'.join(map(str, problem['loc'])) or 'document'}: {problem['msg']}")
    return "\n".join(lines)


def load_config(path: Path | None = None, **overrides: Any) -> RunConfig:
    """The configuration in the YAML file `path` (None: all defaults), with the given top-level fields replaced.

    Raises ConfigError naming file, line and field.
    """
    text, source = "", "command line"
    if path is not None:
        source = str(path)
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"{source}: cannot be read: {e}") from e
    try:
        data = yaml.safe_load(text) or {}
    except yaml.YAMLError as e:
        raise ConfigError(f"{source}: not YAML: {e}") from e
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected fields and values, found a {type(data).__name__}")
    try:
        return RunConfig.model_validate({**data, **{k: v for k, v in overrides.items() if v is not None}})
    except ValidationError as e:
        raise ConfigError(_explain(e, source, text)) from e
