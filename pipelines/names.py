"""Checks that our generic top-level names are ours. The command line calls `check_names` before anything else."""

from importlib.util import find_spec
from pathlib import Path

from schemas.errors import ConfigError

NAMES = ("agents", "schemas", "pipelines", "prompts")


def check_names() -> None:
    """Raise ConfigError when one of our packages is hidden behind another distribution's."""
    home = Path(__file__).resolve().parents[1]
    for name in NAMES:
        spec = find_spec(name)
        origin = spec.origin if spec else None
        ours = home / name / "__init__.py"
        if origin is None or Path(origin).resolve() != ours:
            found = origin or (list(spec.submodule_search_locations or []) if spec else "nothing")
            raise ConfigError(
                f"the name `{name}` belongs to another distribution: found {found}, expected {ours}. "
                "Uninstall that distribution or use an environment of its own for trajmill (make setup)."
            )
