"""The family `table_work`: answer a question about tables, or transform them, into one result file.

`build` is called by the task stage. Inputs are CSV, JSON lines or SQLite; the result is checked by value.
"""

import random

from agents.environments.common import Draft, Script, bash, build_task, read_file, submit, verification, write_file
from agents.environments.table_kinds import KINDS, Result
from agents.environments.tables import Cell, Table, dim_table, encode, main_table, unchanged
from agents.environments.themes import Theme, themes_for
from prompts import render
from schemas.pattern import UsagePattern
from schemas.pattern_views import length_class
from schemas.task import FileSpec, Task, Verification

FAMILY = "table_work"
_SQL_KINDS = ("aggregate", "filter_sort", "join", "top_n")
_AWK_KINDS = ("aggregate", "filter_sort", "top_n")


def build(pattern: UsagePattern, seed: int, eval_share: float = 0.15) -> Task:
    """A task about synthetic tables. Pure: the same arguments give the same task."""
    return build_task(FAMILY, pattern, seed, eval_share, draw)


def draw(rng: random.Random, pattern: UsagePattern) -> Draft:
    """A draft about tables that fit the pattern."""
    theme = rng.choice(themes_for(pattern.domain))
    kind = rng.choice(sorted(KINDS))
    source = rng.choice(("csv", "jsonl", "sqlite"))
    commas = rng.random() < 0.6
    main = main_table(rng, theme, length_class(pattern), commas=commas, dirty=kind == "clean")
    dim = dim_table(rng, theme, main)
    tables = [main, dim] if kind == "join" or rng.random() < 0.4 else [main]
    specs = encode(tables, source, rng.choice(("data/", "exports/", "input/", "")), _database(rng), theme.decimals)
    result = KINDS[kind](rng, theme, main, dim)
    values = _values(rng, theme, kind, source, specs, result)
    awk = source == "csv" and not commas and values["output"] == "csv" and kind in _AWK_KINDS
    ways = ["loop"] + ["sql"] * (2 * (source == "sqlite" and kind in _SQL_KINDS)) + ["awk"] * (2 * awk)
    script = Script(rng, FAMILY, values)
    _explore(script, specs)
    _work(script, rng.choice(ways))
    _check(script)
    text = _lines(result)
    return Draft(
        kind=kind,
        values=values,
        needed=_needed(values),
        workspace=specs,
        verification=_verification(values, result, specs, tables),
        steps=script.steps,
        # One row alone could repeat a row of the input; several in the wanted order and columns cannot.
        answer=["\n".join(text)] + (text if kind in ("aggregate", "top_n") else []),
    )


def _database(rng: random.Random) -> str:
    return rng.choice(("shop", "records", "main", "warehouse"))


def _values(
    rng: random.Random, theme: Theme, kind: str, source: str, specs: list[FileSpec], result: Result
) -> dict[str, object]:
    output = rng.choice(("csv", "csv", "json"))
    stem = rng.choice((kind, f"{theme.table}_{kind}", "result", "report", f"{theme.table}_out"))
    folder = rng.choice(("out/", "results/", "reports/", ""))
    sql = source == "sqlite"
    return {
        "kind": kind,
        "source": source,
        "path": specs[0].path,
        "dim_path": specs[0].path if sql else (specs[1].path if len(specs) > 1 else ""),
        "place": rng.choice((f"the table {theme.table} in {specs[0].path}", f"{specs[0].path} (table {theme.table})"))
        if sql
        else specs[0].path,
        "dim_place": f"the table {theme.dim}" if sql else (specs[1].path if len(specs) > 1 else ""),
        "table": theme.table,
        "dim": theme.dim,
        "attribute": theme.attribute,
        "id": theme.id,
        "date": theme.date,
        "label": theme.label,
        "group": theme.group,
        "ref": theme.ref,
        "value": theme.value,
        "whole": not theme.decimals,
        "out": f"{folder}{stem}.{output}",
        "out_folder": folder.rstrip("/"),
        "output": output,
        "columns": result.columns,
        "header": ",".join(result.columns),
        "notes": rng.choice(("NOTES.md", "README.md", "TODO.md", "request.txt")),
        "count": len(result.rows),
        "operation": "",
        "chosen": "",
        "limit": 0,
        "n": 0,
        **result.values,
    }


def _needed(values: dict[str, object]) -> list[str]:
    used = {
        "aggregate": ("group", "value"),
        "filter_sort": ("group", "value", "chosen", "limit", "id"),
        "join": ("dim_place", "ref", "attribute", "value", "id"),
        "clean": ("id", "date", "group", "value"),
        "top_n": ("n", "ref", "value"),
    }[str(values["kind"])]
    columns = values["columns"]
    names = [str(name) for name in columns] if isinstance(columns, list) else []
    return [str(values[name]) for name in ("path", "out", *used)] + names


def _code(name: str, script: Script) -> str:
    return render(f"environments/{FAMILY}/code/{name}", **script.values).strip()


def _heredoc(code: str) -> str:
    return f"python3 - <<'EOF'\n{code}\nEOF"


def _explore(script: Script, specs: list[FileSpec]) -> None:
    rng, values = script.rng, script.values
    script.add("explore", "look", bash(rng.choice(("ls -R", "find . -type f | sort", "ls -1 -F . " + _parents(specs)))))
    if values["source"] == "sqlite":
        script.add("explore", "schema", bash(_heredoc(_code("schema", script))))
    else:
        for spec in specs[: 2 if values["kind"] == "join" else 1]:
            head = rng.choice(
                (f"head -n {rng.choice((3, 5, 6))} {spec.path}", f"sed -n 1,{rng.randint(4, 8)}p {spec.path}")
            )
            script.add("explore", "head", bash(head))
    script.add("explore", "profile", bash(_heredoc(_code("profile", script))), min_effort=40)


def _parents(specs: list[FileSpec]) -> str:
    return " ".join(sorted({spec.path.rpartition("/")[0] for spec in specs if "/" in spec.path}))


def _work(script: Script, way: str) -> None:
    rng = script.rng
    code = _code(f"{script.values['kind']}_{way}", script)
    if way == "awk":
        script.add("work", "one_off", bash(code))
    elif rng.random() < 0.5:
        script.add("work", "one_off", bash(_heredoc(code)))
    else:
        name = rng.choice(("make_result.py", "run.py", f"{script.values['kind']}.py"))
        script.add("work", "write_script", write_file(name, code + "\n"))
        script.add("work", "run_script", bash(f"python3 {name}"))


def _check(script: Script) -> None:
    rng, out = script.rng, script.values["out"]
    look = rng.choice((bash(f"head -n 12 {out}"), read_file(str(out)), bash(f"cat {out}")))
    script.add("check", "result", look)
    script.add("check", "readback", bash(_heredoc(_code("readback", script))), min_effort=60)
    script.add("check", "recheck", bash(_heredoc(_code("recheck", script))), min_effort=85)
    text = render(f"environments/{FAMILY}/answer", variant=rng.randrange(4), **script.values).strip()
    script.add("submit", "submit", submit(text))


def _shown(cell: Cell) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def _lines(result: Result) -> list[str]:
    return [",".join(_shown(cell) for cell in row) for row in result.rows]


def _verification(
    values: dict[str, object], result: Result, specs: list[FileSpec], tables: list[Table]
) -> Verification:
    about = {"path": values["out"], "format": values["output"], "columns": result.columns}
    points = {
        "columns": {**about, "check": "columns"},
        "rows": {**about, "check": "rows", "rows": result.rows},
        "inputs_unchanged": unchanged(specs, tables),
    }
    return verification("files", {"points": points}, ["columns", "rows"], ["inputs_unchanged"])
