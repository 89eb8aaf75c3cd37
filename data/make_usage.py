"""Writes data/usage from the conversations in data/usage_scripts: four partners, four formats, always the same bytes.

Run by hand after a script was edited: `python data/make_usage.py [folder]`. A test checks that the committed logs are
what it writes. Nothing else calls it; the pipeline reads only the logs.
"""

import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from usage_formats import Conversation, brightfork, harbor, lumen, northwind

HERE = Path(__file__).parent


def fill(value: Any, variables: dict[str, Any], planted: dict[str, str]) -> Any:
    """`value` with `{name}` replaced by the variant's variables and `<<name>>` by planted strings, at any depth."""
    if isinstance(value, dict):
        return {k: fill(v, variables, planted) for k, v in value.items()}
    if isinstance(value, list):
        return [fill(v, variables, planted) for v in value]
    if not isinstance(value, str):
        return value
    if (whole := re.fullmatch(r"\{(\w+)\}", value)) and not isinstance(variables[whole[1]], str):
        return variables[whole[1]]
    text = re.sub(r"\{\{|\}\}|\{(\w+)\}", lambda m: str(variables[m[1]]) if m[1] else m[0][0], value)
    return re.sub(r"<<(\w+)>>", lambda m: planted[m[1]], text)


def conversations(script: dict[str, Any], planted: dict[str, str]) -> Iterator[Conversation]:
    """One filled-in conversation per session and variant: name, number, steps, and whatever else the session says."""
    for session in script["sessions"]:
        for number, variables in enumerate(session.get("variants", [{}])):
            steps = [s for s in session["steps"] if "when" not in s or variables.get(s["when"])]
            rng = random.Random(f"{session['name']}/{number}")  # noqa: S311
            yield {**session, **variables, "number": number, "rng": rng, "steps": fill(steps, variables, planted)}


PARTNERS: dict[str, Callable[[dict[str, Any], list[Conversation]], dict[str, str]]] = {
    "northwind_analytics": northwind,
    "brightfork_dev": brightfork,
    "lumen_support": lumen,
    "harbor_ops": harbor,
}


def logs() -> dict[str, str]:
    """Path below data/usage → content of every log."""
    planted = {p["name"]: p["value"] for p in json.loads((HERE / "planted.json").read_text(encoding="utf-8"))}
    files: dict[str, str] = {}
    for partner, writer in PARTNERS.items():
        script = yaml.safe_load((HERE / "usage_scripts" / f"{partner}.yaml").read_text(encoding="utf-8"))
        written = writer(script, list(conversations(script, planted)))
        files |= {f"{partner}/{name}": content for name, content in written.items()}
    return files


def main() -> None:
    """Writes the logs below the folder given, or data/usage."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "usage"
    for name, content in logs().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
