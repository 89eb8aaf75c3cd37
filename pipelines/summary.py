"""The table that `run` ends with, computed from the run's tables with DuckDB. Called by the command line."""

import json
from dataclasses import dataclass
from typing import Any

import duckdb
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines import pool_counts
from pipelines.folder import STAGES, RunFolder
from pipelines.sql import connect, table_files
from pipelines.terminal import plain

SMALL_MODEL = (
    "The embedded model is an untouched 135M one: it passed {passed} of {played} episodes, and a few percent is the "
    "most to expect. Its episodes show the whole line at work; it is not a policy to learn from."
)


@dataclass(frozen=True)
class Section:
    """One block of the summary: rows under column names, and a sentence below where there is something to say."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    note: str = ""


_LOSSES = ("crashed", "expired", "lost")
"""What became of sandboxes: columns that are shown when one of them is not 0."""
_QUERIES = {
    "sessions": (
        ("format", "read", "rejected records"),
        """
        select coalesce(format, 'not recognised') as name, sum(read)::bigint, sum(refused)::bigint from (
            select format, 1 as read, 0 as refused from sessions
            union all select format, 0, 1 from rejects where stage = 'ingest'
        ) group by 1 order by 1
        """,
    ),
    "patterns": (
        ("patterns", "number", "sessions", "partners (least)"),
        """
        select 'released' as name, count(*), sum(sessions)::bigint, min(partners) from patterns
        union all
        select 'suppressed: ' || reason, count(*), null, null from rejects where stage = 'patterns' group by reason
        """,
    ),
    "tasks": (
        ("tasks", "validated", "for evaluation"),
        """
        select environment, count(*), count(*) filter (split = 'eval') from tasks group by 1 order by 1
        """,
    ),
    "candidates refused": (
        ("reason", "number"),
        "select reason, count(*) from rejects where stage = 'tasks' group by 1 order by 2 desc, 1",
    ),
    "episodes": (
        ("policy", "scaffold", "layout", "episodes", "passed", "undecided", "pass rate", *_LOSSES),
        """
        select policy, scaffold, layout, count(*), count(*) filter (passed), count(*) filter (passed is null),
            round(100 * avg(passed::int), 1) || ' %', count(*) filter (repercussion = 'sandbox_crashed'),
            count(*) filter (stop_reason = 'sandbox_expired'),
            count(*) filter (attempts > 1 or stop_reason = 'sandbox_error')
        from episodes group by 1, 2, 3 order by 1, 2, 3
        """,
    ),
    "episodes without a verdict": (
        ("policy", "stopped by", "why", "episodes"),
        """
        select policy, stop_reason, coalesce(error, 'the verification gave no result'), count(*) from episodes
        where passed is null and policy <> 'blueprint' group by 1, 2, 3 order by 4 desc, 1, 2, 3 limit 10
        """,
    ),
    "episodes by effort": (
        ("policy", "effort", "episodes", "pass rate", "output tokens per episode"),
        """
        select policy, effort, count(*), round(100 * avg(passed::int), 1) || ' %', round(avg(output_tokens), 1)
        from episodes group by 1, 2 order by 1, 2
        """,
    ),
    "samples": (
        ("policy", "verdict", "samples"),
        """
        select policy, verdict.reason, count(*) from samples
        group by 1, verdict.keep, verdict.reason order by 1, verdict.keep desc, 3 desc, 2
        """,
    ),
    "tokens": (
        ("policy", "prompt", "output"),
        """
        select policy, sum(prompt_tokens)::bigint, sum(output_tokens)::bigint from episodes
        group by 1 having count(output_tokens) > 0 order by 1
        """,
    ),
}


def summarise(run: RunFolder) -> list[Section]:
    """All sections that have something to show, in the order of the stages."""
    connection = connect(run)
    sections = {
        title: Section(title, columns, connection.execute(text).fetchall())
        for title, (columns, text) in _QUERIES.items()
    }
    if run.is_done("ingest") and not run.has_output("ingest"):
        sections["sessions"] = Section("sessions", (), [], "The session store was removed.")
    counts = pool_counts.read(run)
    notes = [_small_model(run, connection), pool_counts.line(counts) if counts else None]
    sections["episodes"] = _episodes(sections["episodes"], "\n".join(filter(None, notes)))
    ordered = [
        *(sections[name] for name in ("sessions", "patterns", "tasks", "candidates refused", "episodes")),
        _missed(connection),
        *(sections[name] for name in ("episodes without a verdict", "episodes by effort", "samples", "tokens")),
        _shards(run, connection),
        _times(run),
    ]
    return [section for section in ordered if section.rows or section.note]


def _episodes(section: Section, note: str) -> Section:
    width = len(section.columns) - (0 if any(any(row[-len(_LOSSES) :]) for row in section.rows) else len(_LOSSES))
    return Section(section.title, section.columns[:width], [row[:width] for row in section.rows], note)


def _small_model(run: RunFolder, connection: duckdb.DuckDBPyConnection) -> str | None:
    """The plain word on what the embedded default model can do, when it played."""
    engine = run.config().engine
    text = "select count(*), count(*) filter (passed) from episodes where policy = 'engine'"
    ((played, passed),) = connection.execute(text).fetchall()
    if engine.model != "smollm2" or engine.url is not None or not played:
        return None
    return SMALL_MODEL.format(passed=passed, played=played)


def _missed(connection: duckdb.DuckDBPyConnection) -> Section:
    """Each blueprint episode that did not pass, with what stopped it and the points that do not hold."""
    rows = connection.execute(
        """
        select episode_id, kind, scaffold, layout, effort, stop_reason, points_json, error
        from episodes where policy = 'blueprint' and passed is distinct from true order by kind, episode_id
        """
    ).fetchall()
    explained = [(*row[:5], _why(*row[5:])) for row in rows]
    return Section(
        "blueprint episodes that did not pass", ("episode", "kind", "scaffold", "layout", "effort", "why"), explained
    )


def _why(stop_reason: str, points_json: str | None, error: str | None) -> str:
    if error:
        return f"{stop_reason}: {error}"
    failed = [name for name, good in json.loads(points_json or "{}").items() if not good]
    if failed:
        return f"{stop_reason}; does not hold: {', '.join(failed)}"
    return f"{stop_reason}; the verification gave no result"


def _shards(run: RunFolder, connection: duckdb.DuckDBPyConnection) -> Section:
    rows = []
    for name, text in (("text", "select count(*) from text"), ("tokens", "select count(*) from tokens")):
        if files := table_files(run, name):
            (count,) = connection.execute(text).fetchall()[0]
            rows.append((name, len(files), count, f"{sum(f.stat().st_size for f in files) / 1e6:.2f}"))
    return Section("shards", ("configuration", "files", "rows", "MB"), rows)


def _times(run: RunFolder) -> Section:
    times = [(stage, marker["wall_s"]) for stage in STAGES if (marker := run.marker(stage))]
    total = round(sum(seconds for _, seconds in times), 1)
    rows = [(stage, f"{seconds:.1f}") for stage, seconds in times]
    return Section("wall time", ("stage", "seconds"), [*rows, ("all", f"{total:.1f}")] if rows else [])


def print_summary(run: RunFolder, console: Console | None = None) -> None:
    """Print all sections."""
    console = console or Console(width=None if Console().is_terminal else 140)
    for section in summarise(run):
        if section.rows:
            console.print(_table(section))
        if section.note:
            console.print(Text(section.note))
    console.print(
        Text(f"The private session store is {run.table('sessions')}; remove that folder when it is not needed.")
    )


def _table(section: Section) -> Table:
    table = Table(title=section.title, title_justify="left", title_style="bold")
    for index, column in enumerate(section.columns):
        number = any(isinstance(row[index], int | float) for row in section.rows)
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in section.rows:
        table.add_row(*(Text("" if value is None else plain(str(value))) for value in row))
    return table
