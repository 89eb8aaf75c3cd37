"""Synthetic tables with the quirks of real ones, written as CSV, JSON lines or an SQLite script. For `table_work`."""

import csv
import hashlib
import io
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from agents.environments.themes import Theme
from schemas.pattern_views import LengthClass
from schemas.task import FileSpec

Cell = str | int | float | None
_ROWS: dict[LengthClass, tuple[int, int]] = {"short": (14, 28), "medium": (40, 80), "long": (110, 220)}


@dataclass(frozen=True)
class Table:
    """Named columns and rows; a missing cell is None."""

    name: str
    columns: list[str]
    rows: list[list[Cell]]


def _group(rng: random.Random, name: str) -> str:
    spelled = rng.choice([name] * 5 + [name.capitalize(), name.upper(), f" {name}", f"{name.title()} "])
    return spelled


def main_table(rng: random.Random, theme: Theme, length: LengthClass, *, commas: bool, dirty: bool) -> Table:
    """Rows in random order of ids. `dirty` adds repeated ids and dates written as DD.MM.YYYY."""
    low, high = _ROWS[length]
    labels = [label for label in theme.labels if commas or "," not in label]
    numbers = rng.sample(range(1000, 9999), rng.randint(low, high))
    first = date(rng.randint(2021, 2025), rng.randint(1, 12), 1)
    refs = [f"{theme.ref_prefix}{n:02d}" for n in range(1, 9 if length == "short" else 13)]
    rows: list[list[Cell]] = []
    for number in numbers:
        day = first + timedelta(days=rng.randrange(120))
        cents = rng.randint(theme.low * 100, theme.high * 100)
        value: Cell = cents / 100 if theme.decimals else cents // 100
        missing = rng.random() < 0.1
        written = day.strftime("%d.%m.%Y") if dirty and rng.random() < 0.35 else day.isoformat()
        rows.append(
            [
                f"{theme.prefix}{number}",
                written,
                rng.choice(labels),
                _group(rng, rng.choice(theme.groups)),
                rng.choice(refs),
                None if missing else value,
            ]
        )
    if dirty:
        for row in rng.sample(rows, max(2, len(rows) // 10)):
            rows.insert(rng.randint(rows.index(row) + 1, len(rows)), list(row))
    return Table(theme.table, theme.columns, rows)


def dim_table(rng: random.Random, theme: Theme, main: Table) -> Table:
    """One row per reference but for one or two that are missing."""
    refs = sorted({str(row[4]) for row in main.rows})
    known = sorted(rng.sample(refs, len(refs) - rng.randint(1, 2)))
    rows: list[list[Cell]] = [[ref, rng.choice(theme.attributes)] for ref in known]
    return Table(theme.dim, [theme.ref, theme.attribute], rows)


def _csv(table: Table, decimals: int) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow([f"{cell:.{decimals}f}" if isinstance(cell, float) else cell for cell in row])
    return out.getvalue()


def _jsonl(table: Table) -> str:
    return "".join(
        json.dumps(dict(zip(table.columns, row, strict=True)), ensure_ascii=False) + "\n" for row in table.rows
    )


def _literal(cell: Cell) -> str:
    if cell is None:
        return "NULL"
    return str(cell) if isinstance(cell, (int, float)) else "'" + cell.replace("'", "''") + "'"


def _sql(table: Table) -> str:
    numeric = {i for row in table.rows for i, cell in enumerate(row) if isinstance(cell, (int, float))}
    columns = ", ".join(f"{name} {'REAL' if i in numeric else 'TEXT'}" for i, name in enumerate(table.columns))
    lines = [f"CREATE TABLE {table.name} ({columns});"]
    for row in table.rows:
        lines.append(f"INSERT INTO {table.name} VALUES ({', '.join(map(_literal, row))});")  # noqa: S608
    return "\n".join(lines) + "\n"


def encode(tables: Sequence[Table], source: str, folder: str, database: str, decimals: int) -> list[FileSpec]:
    """Files of the tables in `folder`: one each for csv and jsonl, `database` with all of them for sqlite."""
    if source == "sqlite":
        return [FileSpec(path=f"{folder}{database}.db", content="".join(map(_sql, tables)), encoding="sql")]
    if source == "csv":
        return [FileSpec(path=f"{folder}{table.name}.csv", content=_csv(table, decimals)) for table in tables]
    return [FileSpec(path=f"{folder}{table.name}.jsonl", content=_jsonl(table)) for table in tables]


def unchanged(specs: Sequence[FileSpec], tables: Sequence[Table]) -> dict[str, object]:
    """Verifier check that the inputs still say what they said."""
    if specs[0].encoding == "sql":
        return {"check": "database", "path": specs[0].path, "tables": {t.name: _rows_digest(t) for t in tables}}
    digests = {spec.path: hashlib.sha256(spec.content.encode()).hexdigest() for spec in specs}
    return {"check": "present", "files": digests}


def _rows_digest(table: Table) -> str:
    numeric = {i for row in table.rows for i, cell in enumerate(row) if isinstance(cell, (int, float))}
    rows = [
        [float(c) if i in numeric and isinstance(c, (int, float)) else c for i, c in enumerate(r)] for r in table.rows
    ]
    rows.sort(key=lambda row: str(row[0]))
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()
