"""The family `code_repair`: a small package with a seeded bug, to be found and fixed.

`build` is called by the task stage. Hidden calls decide: some fail before the repair, others must go on working.
"""

import random

from agents.environments import code_repair_files as parts
from agents.environments.code_repair_blueprint import blueprint
from agents.environments.code_repair_bugs import BUGS, Bug
from agents.environments.code_repair_cases import Case, Cases, changed_lines, damaged, find_cases, shortened, source_of
from agents.environments.code_repair_inputs import INPUTS
from agents.environments.common import Draft, build_task, verification
from agents.environments.verifiers.probe import digest
from schemas.errors import ConfigError
from schemas.pattern import UsagePattern
from schemas.pattern_views import length_class
from schemas.task import FileSpec, Task, Verification

FAMILY = parts.FAMILY
KINDS = ("failing_test", "bug_report", "ci_log", "spec_mismatch")
_PACKAGES = ("toolbox", "backoffice", "opskit", "helpers", "shoplib", "commons", "deskapp", "planner")
_OTHERS = {"short": 1, "medium": 2, "long": 3}


def build(pattern: UsagePattern, seed: int, eval_share: float = 0.15) -> Task:
    """A task about a package with one bug. Pure: the same arguments give the same task."""
    return build_task(FAMILY, pattern, seed, eval_share, draw)


def draw(rng: random.Random, pattern: UsagePattern) -> Draft:
    """A draft with any bug, in a package as large as the pattern asks for."""
    return draft(rng, rng.choice(BUGS), rng.choice(KINDS), _OTHERS[length_class(pattern)])


def draft(rng: random.Random, bug: Bug, kind: str, others: int) -> Draft:
    """A draft with this bug. ConfigError when random inputs do not show it often enough."""
    cases = find_cases(rng, bug)
    if len(cases.telling) < 3:
        raise ConfigError(f"{bug.module}.{bug.function} ({bug.kind}): only {len(cases.telling)} inputs show the bug")
    rng.shuffle(cases.quiet)
    shown = shortened(bug, cases.telling[0])
    package = rng.choice(_PACKAGES)
    modules = rng.sample(sorted(set(INPUTS) - {bug.module}), others)
    values = _values(rng, bug, kind, package, shown)
    workspace = _workspace(rng, bug, values, modules, cases, shown)
    before, after, _ = changed_lines(source_of(bug.module), damaged(bug))
    return Draft(
        kind=kind,
        values=values,
        needed=_needed(values),
        workspace=workspace,
        verification=_verification(f"{package}.{bug.module}", cases),
        steps=blueprint(rng, FAMILY, bug, values, shown, cases.quiet[-3:]),
        answer=["\n".join(line.strip() for line in before) if before else "\n".join(after)],
    )


def _values(rng: random.Random, bug: Bug, kind: str, package: str, shown: Case) -> dict[str, object]:
    return {
        "kind": kind,
        "output": "",
        "package": package,
        "module": bug.module,
        "path": f"{package}/{bug.module}.py",
        "function": bug.function,
        "bug": bug.kind,
        "log": rng.choice(("ci/last_run.txt", "ci/build-114.log", "nightly.log")),
        "docs": f"docs/{bug.module}.md",
        "notes": rng.choice(("NOTES.md", "ISSUE.md", "TODO.md")),
        **parts.report_line(shown),
    }


def _needed(values: dict[str, object]) -> list[str]:
    used = {
        "failing_test": ("package",),
        "bug_report": ("package", "example", "got", "wanted"),
        "ci_log": ("log",),
        "spec_mismatch": ("docs", "function"),
    }[str(values["kind"])]
    return [str(values[name]) for name in used]


def _workspace(
    rng: random.Random, bug: Bug, values: dict[str, object], others: list[str], cases: Cases, shown: Case
) -> list[FileSpec]:
    package, kind = str(values["package"]), values["kind"]
    sources = {module: source_of(module) for module in others} | {bug.module: damaged(bug)}
    visible = sorted(cases.quiet[:4], key=lambda case: case.function)
    tests = {module: parts.other_tests(rng, module) for module in others} | {bug.module: visible}
    extra = []
    if kind == "failing_test":
        tests[bug.module] = [*visible, shown]
    elif kind == "ci_log":
        extra = [FileSpec(path=str(values["log"]), content=parts.ci_log(visible, shown))]
    elif kind == "spec_mismatch":
        extra = [FileSpec(path=str(values["docs"]), content=parts.documentation(bug.module, [*visible, shown]))]
    return [*parts.package_files(package, sources), *parts.test_files(package, tests), *extra]


def _point(cases: list[Case]) -> dict[str, object]:
    results = [result for case in cases for result in case.expected]
    return {"calls": [call for case in cases for call in case.calls], "digest": digest(results)}


def _verification(module: str, cases: Cases) -> Verification:
    hidden = cases.telling[1:10]
    failing = {f"hidden_{i + 1}": _point(hidden[i::2]) for i in range(2)}
    kept = {f"kept_{i + 1}": _point(cases.quiet[4 + i : 24 : 2]) for i in range(2)}
    return verification("code", {"module": module, "points": failing | kept}, list(failing), list(kept))
