"""The workspace of a `code_repair` task: package, visible tests, reports and documentation."""

import ast
import random

from agents.environments.code_repair_cases import Case, outcome, quiet_case, source_of, steps_of
from agents.environments.code_repair_inputs import INPUTS
from prompts import render
from schemas.task import FileSpec

FAMILY = "code_repair"


def _text(template: str, **values: object) -> str:
    return render(f"environments/{FAMILY}/files/{template}", **values).strip() + "\n"


def summary(module: str) -> str:
    """First line of a reference module's docstring."""
    return (ast.get_docstring(ast.parse(source_of(module))) or "").splitlines()[0]


def package_files(package: str, sources: dict[str, str]) -> list[FileSpec]:
    """The package and its README."""
    modules = {module: summary(module) for module in sorted(sources)}
    about = {"package": package, "modules": modules}
    return [
        FileSpec(path="README.md", content=_text("readme", **about)),
        FileSpec(path=f"{package}/__init__.py", content=_text("init", **about)),
        *(FileSpec(path=f"{package}/{module}.py", content=source) for module, source in sorted(sources.items())),
    ]


def named(cases: list[Case]) -> list[tuple[str, Case]]:
    """Cases with names of tests: function and number."""
    counts: dict[str, int] = {}
    result = []
    for case in cases:
        counts[case.function] = counts.get(case.function, 0) + 1
        result.append((f"test_{case.function.lower()}_{counts[case.function]}", case))
    return result


def test_files(package: str, tests: dict[str, list[Case]]) -> list[FileSpec]:
    """The runner, whose output has no times and no addresses, and one test file per module."""
    files = [FileSpec(path="tests/run.py", content=_text("run", package=package))]
    for module, cases in sorted(tests.items()):
        data = [{"name": name, "steps": steps_of(case)} for name, case in named(cases)]
        used = sorted({case.function for case in cases})
        content = _text("tests", package=package, module=module, names=used, tests=data)
        files.append(FileSpec(path=f"tests/test_{module}.py", content=content))
    return files


def other_tests(rng: random.Random, module: str) -> list[Case]:
    """Visible tests of an undamaged module."""
    functions = rng.sample(sorted(INPUTS[module]), 2)
    return [quiet_case(rng, module, function) for function in functions]


def report_line(case: Case) -> dict[str, str]:
    """A telling case, cut where it shows, in words: the calls, what they gave and what was expected."""
    steps = [str(step["text"]) for step in steps_of(case)]
    return {"example": "; ".join(steps), "got": outcome(case.actual[-1]), "wanted": outcome(case.expected[-1])}


def ci_log(tests: list[Case], failing: Case) -> str:
    """Output of a run, elsewhere, of a larger test suite in which one test failed."""
    lines = [{"name": name, "failed": case is failing, **report_line(case)} for name, case in named([*tests, failing])]
    return _text("ci_log", lines=lines)


def documentation(module: str, examples: list[Case]) -> str:
    """What each function or class promises, with examples."""
    entries = []
    for node in ast.parse(source_of(module)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            mine = [report_line(case) for case in examples if case.function == node.name]
            methods = [
                {"name": inner.name, "text": ast.get_docstring(inner)}
                for inner in (node.body if isinstance(node, ast.ClassDef) else [])
                if isinstance(inner, ast.FunctionDef) and inner.name != "__init__"
            ]
            entry = {"name": node.name, "text": ast.get_docstring(node), "methods": methods, "examples": mine}
            entries.append(entry)
    return _text("docs", module=module, summary=summary(module), entries=entries)
