"""Every text that a model or a person is meant to read, as Jinja2 templates; none stands in code.

`render` is called by scaffolds, environments and the swarm. A variable that is missing is an error (StrictUndefined).
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


@lru_cache
def _environment() -> Environment:
    # Not HTML: nothing is escaped, and block tags leave no blank lines behind.
    return Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )


def render(template: str, /, **variables: Any) -> str:
    """The template `prompts/<template>.j2` with its variables filled in."""
    return _environment().get_template(f"{template}.j2").render(**variables)


def names(folder: str) -> list[str]:
    """Templates below a folder, sorted, as `render` takes them."""
    root = Path(__file__).parent
    return sorted(str(p.relative_to(root).with_suffix("")) for p in (root / folder).rglob("*.j2"))
