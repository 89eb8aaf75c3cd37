"""Which inputs tell a damaged module from the right one, found by running both. Called by `code_repair`.

The sources executed here are the project's own.
"""

import difflib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import CodeType, ModuleType

from agents.environments.code_repair_bugs import Bug
from agents.environments.code_repair_inputs import INPUTS, Calls
from agents.environments.verifiers.probe import run_calls
from schemas.errors import ConfigError


@dataclass(frozen=True)
class Case:
    """Calls, what they should give, and what they give with the bug."""

    function: str
    calls: Calls
    expected: list[object]
    actual: list[object]

    @property
    def telling(self) -> bool:
        """Whether the bug shows."""
        return self.expected != self.actual


@dataclass(frozen=True)
class Cases:
    """`telling` inputs show the bug, `quiet` ones (of any function of the module) do not. All are distinct."""

    telling: list[Case]
    quiet: list[Case]


@lru_cache
def source_of(module: str) -> str:
    """The right source of a reference module."""
    return (files("agents.environments.reference") / f"{module}.py").read_text(encoding="utf-8")


def damaged(bug: Bug) -> str:
    """The source with the bug in it. ConfigError when the bug does not fit the source."""
    source = source_of(bug.module)
    if source.count(bug.good) != 1:
        raise ConfigError(f"{bug.module}: {bug.good!r} stands {source.count(bug.good)} times")
    return source.replace(bug.good, bug.bad)


def changed_lines(before: str, after: str) -> tuple[list[str], list[str], int]:
    """Lines that differ in each of two sources, and the line number (from 1) of the first one in `before`."""
    old, new = before.splitlines(), after.splitlines()
    blocks = [op for op in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if op[0] != "equal"]
    first, last = blocks[0], blocks[-1]
    return old[first[1] : last[2]], new[first[3] : last[4]], first[1] + 1


@lru_cache(maxsize=256)
def _compiled(source: str, name: str) -> CodeType:
    return compile(source, name, "exec")


def evaluate(source: str, name: str, calls: Calls) -> list[object]:
    """Results of calls against a fresh module, so that state kept between calls is that of these calls alone."""
    module = ModuleType(name)
    exec(_compiled(source, name), module.__dict__)  # noqa: S102
    return run_calls(module, calls)


def _case(bug: Bug, function: str, calls: Calls) -> Case:
    name = bug.module
    return Case(function, calls, evaluate(source_of(name), name, calls), evaluate(damaged(bug), name, calls))


def find_cases(rng: random.Random, bug: Bug, wanted: int = 10, tries: int = 400) -> Cases:
    """Distinct cases of every function of the damaged module; of the damaged one until `wanted` show the bug."""
    own = _distinct(rng, bug, bug.function, tries, wanted)
    others = [c for name in INPUTS[bug.module] if name != bug.function for c in _distinct(rng, bug, name, 8, 8)]
    # With a shared default, calls that look right alone go wrong one after the other.
    stateless = [] if bug.kind == "mutable_default" else own
    return Cases([c for c in own if c.telling], [c for c in [*stateless, *others] if not c.telling])


def _distinct(rng: random.Random, bug: Bug, function: str, tries: int, wanted: int) -> list[Case]:
    found: dict[str, Case] = {}
    telling = 0
    for _ in range(tries):
        calls = INPUTS[bug.module][function](rng)
        text = json.dumps(calls)
        if text not in found:
            found[text] = _case(bug, function, calls)
            telling += found[text].telling
        if telling >= wanted:
            break
    return list(found.values())


def shortened(bug: Bug, case: Case) -> Case:
    """The case up to the first call at which the bug shows."""
    first = next(i for i, pair in enumerate(zip(case.expected, case.actual, strict=True)) if pair[0] != pair[1])
    return Case(case.function, case.calls[: first + 1], case.expected[: first + 1], case.actual[: first + 1])


def quiet_case(rng: random.Random, module: str, function: str) -> Case:
    """A case of an undamaged module."""
    calls = INPUTS[module][function](rng)
    results = evaluate(source_of(module), module, calls)
    return Case(function, calls, results, results)


def call_text(subject: str, target: str, arguments: Sequence[object]) -> str:
    """A call as Python source."""
    inner = ", ".join(map(repr, arguments))
    return f"{subject}{target}({inner})" if target.startswith(".") else f"{target}({inner})"


def steps_of(case: Case) -> list[dict[str, object]]:
    """The calls of a case for templates: source, whether it makes the subject, expected value or exception."""
    subject = case.function.lower()
    steps: list[dict[str, object]] = []
    for (target, arguments), expected in zip(case.calls, case.expected, strict=True):
        raises = expected["raises"] if isinstance(expected, dict) and set(expected) == {"raises"} else ""
        makes = target[0].isupper()
        text = call_text(subject, target, arguments)
        step = {"text": f"{subject} = {text}" if makes else text, "makes": makes, "raises": raises}
        steps.append({**step, "expected": repr(expected)})
    return steps


def outcome(value: object) -> str:
    """A result for reports: its literal, or which exception."""
    if isinstance(value, dict) and set(value) == {"raises"}:
        return f"a {value['raises']}"
    return repr(value)
