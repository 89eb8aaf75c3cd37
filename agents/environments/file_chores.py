"""The family `file_chores`: find, move, rename, extract and count files.

`build` is called by the task stage. Where files end up, or what a result file says, is checked.
"""

import random

from agents.environments.chores_kinds import KINDS
from agents.environments.common import Draft, Script, bash, build_task, read_file, submit, verification, write_file
from prompts import render
from schemas.pattern import UsagePattern
from schemas.pattern_views import length_class
from schemas.task import Task

FAMILY = "file_chores"
_MOVES = ("sort_folders", "rename")
# Every template of the family sees every variable; a kind sets those it uses.
_UNSET: dict[str, object] = {
    "phrase": "",
    "target": "",
    "rule": "",
    "scheme": "",
    "level": "",
    "parts": 1,
    "logs": [],
    "by": "",
    "output": "",
    "columns": [],
}


def build(pattern: UsagePattern, seed: int, eval_share: float = 0.15) -> Task:
    """A task about synthetic files. Pure: the same arguments give the same task."""
    return build_task(FAMILY, pattern, seed, eval_share, draw)


def draw(rng: random.Random, pattern: UsagePattern) -> Draft:
    """A draft about as many files as the pattern asks for."""
    kind = rng.choice(sorted(KINDS))
    chore = KINDS[kind](rng, length_class(pattern))
    columns = chore.values.get("columns", [])
    values: dict[str, object] = {
        **_UNSET,
        "kind": kind,
        "notes": rng.choice(("NOTES.md", "README.md", "instructions.txt", "howto.md")),
        "header": ",".join(columns) if isinstance(columns, list) else "",
        **chore.values,
    }
    values["out_folder"] = str(values["out"]).rpartition("/")[0]
    script = Script(rng, FAMILY, values)
    _explore(script, chore.files[rng.randrange(len(chore.files))].path)
    _work(script)
    _check(script)
    failing = [name for name in chore.points if name not in chore.before]
    return Draft(
        kind=kind,
        values=values,
        needed=_needed(values),
        workspace=chore.files,
        verification=verification("files", {"points": chore.points}, failing, chore.before),
        steps=script.steps,
        answer=chore.answer,
    )


def _needed(values: dict[str, object]) -> list[str]:
    used = {
        "find_text": ("folder", "phrase", "out"),
        "sort_folders": ("folder", "target"),
        "rename": ("folder",),
        "extract": ("folder", "level", "out"),
        "report": ("folder", "out"),
    }[str(values["kind"])]
    columns = values["columns"]
    return [str(values[name]) for name in used] + ([str(c) for c in columns] if isinstance(columns, list) else [])


def _code(name: str, script: Script) -> str:
    return render(f"environments/{FAMILY}/code/{name}", **script.values).strip()


def _python(code: str) -> str:
    return f"python3 - <<'EOF'\n{code}\nEOF"


def _explore(script: Script, sample: str) -> None:
    rng, folder = script.rng, script.values["folder"]
    script.add(
        "explore", "look", bash(rng.choice((f"find {folder} -type f | LC_ALL=C sort", f"ls -R {folder}", "ls -R")))
    )
    if script.values["kind"] == "extract":
        script.add("explore", "sample_log", bash(f"head -n {rng.randint(3, 8)} '{sample}'"))
    elif script.values["kind"] != "rename":
        script.add("explore", "sample", rng.choice((bash(f"cat '{sample}'"), read_file(sample))))
    script.add("explore", "count_before", bash(f"find {folder} -type f | wc -l"), min_effort=40)


def _work(script: Script) -> None:
    rng, kind = script.rng, script.values["kind"]
    way = rng.choice(("shell", "python"))
    if way == "shell":
        script.add("work", "one_off", bash(_code(f"{kind}_shell", script)))
    elif rng.random() < 0.5:
        script.add("work", "one_off", bash(_python(_code(f"{kind}_python", script))))
    else:
        # Not below the folder: it would be counted or moved itself.
        name = rng.choice(("do_it.py", "job.py", f"{kind}.py"))
        script.add("work", "write_script", write_file(name, _code(f"{kind}_python", script) + "\n"))
        script.add("work", "run_script", bash(f"python3 {name}"))


def _check(script: Script) -> None:
    rng, values = script.rng, script.values
    if values["kind"] in _MOVES:
        script.add("check", "result_tree", bash(f"find {values['out']} -type f | LC_ALL=C sort | head -n 60"))
    else:
        out = str(values["out"])
        script.add("check", "result_file", rng.choice((bash(f"cat {out}"), read_file(out), bash(f"head -n 15 {out}"))))
    script.add("check", "count_after", bash(_code("count_after", script)), min_effort=60)
    script.add("check", "recheck", bash(_python(_code("recheck", script))), min_effort=85)
    text = render(f"environments/{FAMILY}/answer", variant=rng.randrange(3), **values).strip()
    script.add("submit", "submit", submit(text))
