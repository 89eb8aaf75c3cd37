"""The product's own tools as function schemas, and the check of a call against them."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jsonschema

from prompts import render


@lru_cache
def tool_text(name: str) -> str:
    """One tool as a line of JSON: {"name", "description", "parameters"}."""
    return render(f"tools/{name}").strip()


def tool_schemas(names: Sequence[str]) -> list[dict]:
    """Function schemas of the named tools."""
    return [json.loads(tool_text(name)) for name in names]


@lru_cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(tool_text(name))["parameters"])


def call_error(name: Any, arguments: Any, tools: Sequence[str]) -> str | None:
    """Why a call of one of `tools` is wrong, or None."""
    if name not in tools:
        return f"there is no tool {str(name)[:40]!r}."
    problem = next(iter(_validator(name).iter_errors(arguments)), None)
    if problem is None:
        return None
    place = ".".join(str(p) for p in problem.absolute_path) or "arguments"
    return f"{name}: {place}: {problem.message[:200]}."
