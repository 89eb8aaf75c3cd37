"""What each kind of `table_work` asks for, computed on the tables themselves. No texts and no files here."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from agents.environments.tables import Cell, Table
from agents.environments.themes import Theme

OPERATIONS = ("sum", "mean", "max", "min", "count")


@dataclass(frozen=True)
class Result:
    """The rows that the result file must have, and what the instruction must say to get there."""

    columns: list[str]
    rows: list[list[Cell]]
    values: dict[str, object] = field(default_factory=dict)


def _plain(cell: Cell) -> str:
    return str(cell).strip().lower()


def _number(cell: Cell) -> float:
    if not isinstance(cell, (int, float)):
        raise TypeError(f"not a number: {cell!r}")
    return cell


def _valued(main: Table) -> list[list[Cell]]:
    return [row for row in main.rows if row[5] is not None]


def _rounded(number: float, theme: Theme) -> Cell:
    return round(number, 2) if theme.decimals else round(number)


def aggregate(rng: random.Random, theme: Theme, main: Table, dim: Table) -> Result:
    """One number per group."""
    operation = rng.choice(OPERATIONS)
    groups: dict[str, list[float]] = {}
    for row in _valued(main):
        groups.setdefault(_plain(row[3]), []).append(_number(row[5]))
    name = theme.table if operation == "count" else f"{operation}_{theme.value}"
    work: dict[str, Callable[[list[float]], Cell]] = {
        "sum": lambda v: _rounded(sum(v), theme),
        "mean": lambda v: round(sum(v) / len(v), 2),
        "max": max,
        "min": min,
        "count": len,
    }
    rows: list[list[Cell]] = [[group, work[operation](values)] for group, values in sorted(groups.items())]
    return Result([theme.group, name], rows, {"operation": operation})


def filter_sort(rng: random.Random, theme: Theme, main: Table, dim: Table) -> Result:
    """Rows of one group from a value up, largest first."""
    chosen = rng.choice(theme.groups)
    mine = [row for row in _valued(main) if _plain(row[3]) == chosen]
    ordered = sorted(_number(row[5]) for row in mine)
    limit = int(ordered[len(ordered) // 3]) if ordered else 0
    kept = sorted((r for r in mine if _number(r[5]) >= limit), key=lambda r: (-_number(r[5]), str(r[0])))
    rows: list[list[Cell]] = [[row[0], row[2], row[5]] for row in kept]
    return Result([theme.id, theme.label, theme.value], rows, {"chosen": chosen, "limit": limit})


def join(rng: random.Random, theme: Theme, main: Table, dim: Table) -> Result:
    """Each row with the attribute of what it refers to."""
    known = {row[0]: row[1] for row in dim.rows}
    rows: list[list[Cell]] = [[row[0], known.get(row[4], "unknown"), row[5]] for row in _valued(main)]
    return Result([theme.id, theme.attribute, theme.value], sorted(rows, key=lambda r: str(r[0])))


def clean(rng: random.Random, theme: Theme, main: Table, dim: Table) -> Result:
    """Normalised rows without repeats."""
    rows: dict[str, list[Cell]] = {}
    for row in _valued(main):
        written = str(row[1])
        day = datetime.strptime(written, "%d.%m.%Y").date().isoformat() if "." in written else written
        rows.setdefault(str(row[0]), [row[0], day, _plain(row[3]), row[5]])
    return Result([theme.id, theme.date, theme.group, theme.value], [rows[key] for key in sorted(rows)])


def top_n(rng: random.Random, theme: Theme, main: Table, dim: Table) -> Result:
    """The references with the largest totals, ranked."""
    totals: dict[str, float] = {}
    for row in _valued(main):
        totals[str(row[4])] = totals.get(str(row[4]), 0) + _number(row[5])
    n = rng.randint(3, 5)
    best = sorted(totals.items(), key=lambda item: (-round(item[1], 2), item[0]))[:n]
    rows: list[list[Cell]] = [[rank, ref, _rounded(total, theme)] for rank, (ref, total) in enumerate(best, 1)]
    return Result(["rank", theme.ref, f"total_{theme.value}"], rows, {"n": n})


KINDS: dict[str, Callable[[random.Random, Theme, Table, Table], Result]] = {
    "aggregate": aggregate,
    "filter_sort": filter_sort,
    "join": join,
    "clean": clean,
    "top_n": top_n,
}
