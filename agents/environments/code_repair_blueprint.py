"""Reference actions of `code_repair`: reproduce, read, fix, test. Called by `code_repair`."""

import random

from agents.environments.code_repair_bugs import Bug
from agents.environments.code_repair_cases import Case, changed_lines, damaged, source_of, steps_of
from agents.environments.common import Script, bash, read_file, submit, write_file
from prompts import render
from schemas.task import Action, BlueprintStep

RUN_TESTS = "python3 tests/run.py"


def _tryout(values: dict[str, object], cases: list[Case]) -> Action:
    steps = [steps_of(case) for case in cases]
    names = sorted({case.function for case in cases})
    about = {"package": values["package"], "module": values["module"], "names": names, "cases": steps}
    code = render("environments/code_repair/files/tryout", **about).strip()
    return bash(f"python3 -B - <<'EOF'\n{code}\nEOF")


def _explore(script: Script, shown: Case) -> None:
    rng, values = script.rng, script.values
    script.add(
        "explore",
        "look",
        bash(rng.choice(("find . -type f | sort", "ls -R", "ls -1 . tests " + str(values["package"])))),
    )
    if values["kind"] == "failing_test":
        script.add("explore", "run_tests", bash(RUN_TESTS))
    elif values["kind"] == "ci_log":
        script.add(
            "explore", "read_log", rng.choice((bash(f"cat {values['log']}"), bash(f"grep FAIL {values['log']}")))
        )
    elif values["kind"] == "spec_mismatch":
        script.add("explore", "read_docs", rng.choice((bash(f"cat {values['docs']}"), read_file(str(values["docs"])))))
    path = str(values["path"])
    # Nothing seen so far needs to say which module it is; only little effort guesses from the names.
    script.add("explore", "find_code", bash(f"grep -rn '{values['function']}' {values['package']}"), min_effort=40)
    script.add("explore", "read_code", rng.choice((bash(f"cat -n {path}"), read_file(path), bash(f"cat {path}"))))
    if values["kind"] != "failing_test":
        script.add("explore", "reproduce", _tryout(dict(values), [shown]), min_effort=50)


def _replacement(path: str, bad: str, good: str) -> Action:
    code = render("environments/code_repair/files/replace", path=path, bad=repr(bad), good=repr(good)).strip()
    return bash(f"python3 - <<'EOF'\n{code}\nEOF")


def _fix(rng: random.Random, bug: Bug, path: str) -> Action:
    """One edit, written in one of the ways in which people do it."""
    source = damaged(bug)
    old, new, number = changed_lines(source, source_of(bug.module))
    ways = [_replacement(path, bug.bad, bug.good)] if bug.bad.strip() and source.count(bug.bad) == 1 else []
    text = "".join(new)
    if len(old) == len(new) == 1 and not set("'\\") & set(text):
        ways.append(bash(f"sed -i '{number}c\\{text}' {path}"))
    if not old and not set("'\\") & set(text):
        body = "\\n".join(line.replace(" ", "\\ ", 1) if line.startswith(" ") else line for line in new)
        ways.append(bash(f"sed -i '{number}i{body}' {path}"))
    if len(source.splitlines()) < 50 or not ways:
        ways.append(write_file(path, source_of(bug.module)))
    return rng.choice(ways)


def blueprint(
    rng: random.Random, family: str, bug: Bug, values: dict[str, object], shown: Case, quiet: list[Case]
) -> list[BlueprintStep]:
    """All steps, the last one submits."""
    path = str(values["path"])
    script = Script(rng, family, values)
    _explore(script, shown)
    script.add("work", f"fix_{bug.kind}", _fix(rng, bug, path))
    script.add("check", "tests_again", bash(RUN_TESTS))
    script.add("check", "example_again", _tryout(values, [shown]), min_effort=60)
    script.add("check", "reread", bash(_region(bug, path)), min_effort=75)
    script.add("check", "other_inputs", _tryout(values, quiet), min_effort=85)
    report = render(f"environments/{family}/answer", variant=rng.randrange(4), **values).strip()
    script.add("submit", "submit", submit(report))
    return script.steps


def _region(bug: Bug, path: str) -> str:
    number = changed_lines(damaged(bug), source_of(bug.module))[2]
    return f"sed -n {max(1, number - 6)},{number + 6}p {path}"
