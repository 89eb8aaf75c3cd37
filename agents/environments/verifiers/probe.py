"""Runs calls against a module and tells what came out. The right results are not known here.

The build imports `run_calls` and `digest` for them. In the sandbox this file is the child of `verify.py` that imports
the agent's code. Whatever that code does to this process, it can only change what is reported; only right values pass.
"""

# As few imports as possible: this starts for every point.
# ruff: noqa: PTH109
import hashlib
import importlib
import json
import os
import resource
import sys
from collections.abc import Sequence
from typing import Any

ROUNDS = 20_000
CPU_S = 5


def _plain(value: Any, depth: int = 6) -> Any:
    """A value as JSON can hold it; other types by name only, so that no address gets in."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth and isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value]
    if depth and isinstance(value, dict):
        return {str(key): _plain(item, depth - 1) for key, item in value.items()}
    return {"type": type(value).__name__}


def run_calls(module: Any, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
    """Results of calls in order: `name` calls a function or makes the subject, `.name` calls the subject's method."""
    results: list[Any] = []
    subject: Any = None
    for target, arguments in calls:
        owner = subject if target.startswith(".") else module
        try:
            value = getattr(owner, target.lstrip("."))(*json.loads(json.dumps(arguments)))
        except Exception as error:  # noqa: BLE001
            results.append({"raises": type(error).__name__})
            continue
        if type(value).__module__ == module.__name__:
            subject, value = value, None
        results.append(_plain(value))
    return results


def digest(results: list[Any]) -> str:
    """A slow digest of results, by their text, so that true is not 1 and 2.0 is not 2."""
    text = json.dumps(results, sort_keys=True).encode()
    return hashlib.pbkdf2_hmac("sha256", text, b"results", ROUNDS).hex()


def main() -> None:
    """Read {"module", "calls"} from standard input and write the results to the standard output that it had."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    request = json.load(sys.stdin)
    report = os.dup(1)
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silent, descriptor)
    sys.path.insert(0, os.getcwd())
    # No stale bytecode of the agent's: an edit within a second that keeps the size would be missed.
    sys.pycache_prefix = "/nonexistent"
    module = importlib.import_module(request["module"])
    os.write(report, json.dumps(run_calls(module, request["calls"])).encode())


if __name__ == "__main__":
    main()
