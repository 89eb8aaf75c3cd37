"""How tools and turns are written as text. A scaffold is a module; `base.Scaffold` says what it holds."""

from typing import cast

from agents.scaffolds import bash_minimal, tool_json
from agents.scaffolds.base import Scaffold
from schemas.errors import ConfigError

SCAFFOLDS: dict[str, Scaffold] = {m.NAME: cast(Scaffold, m) for m in (tool_json, bash_minimal)}


def scaffold(name: str) -> Scaffold:
    """The scaffold of that name, or ConfigError."""
    if name not in SCAFFOLDS:
        raise ConfigError(f"scaffold {name!r} is not one of {', '.join(SCAFFOLDS)}")
    return SCAFFOLDS[name]
