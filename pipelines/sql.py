"""The tables of a run in DuckDB: one view per table, read-only, no access outside the run folder.

Called by `trajmill sql`, `trajmill show`, the summary and the notebooks.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any, Literal

import duckdb
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.folder import RunFolder
from pipelines.terminal import plain
from schemas.errors import ConfigError
from schemas.tables import TABLES, arrow_schema

_CELL = 200
_PIPE_WIDTH = 200


def table_files(run: RunFolder, name: str) -> list[Path]:
    """The Parquet files that a view reads."""
    folder = run.shards / name if name in {"text", "tokens"} else run.table(name)
    return sorted(folder.glob("*.parquet"))


def connect(run: RunFolder) -> duckdb.DuckDBPyConnection:
    """A connection with a view for each table; one that was not made yet (or was removed) is empty.

    Files outside the run folder, the network, extensions and Python variables are out of reach.
    """
    connection = duckdb.connect()
    for name in TABLES:
        files = table_files(run, name)
        if files:
            paths = ", ".join("'" + str(path.resolve()).replace("'", "''") + "'" for path in files)
            connection.execute(f"create view {name} as select * from read_parquet([{paths}])")  # noqa: S608 paths are ours
        else:
            connection.register(name, arrow_schema(name).empty_table())
    folder = str(run.path.resolve()).replace("'", "''")
    connection.execute(f"set allowed_directories=['{folder}']")
    for setting in ("enable_external_access=false", "python_enable_replacements=false", "lock_configuration=true"):
        connection.execute(f"set {setting}")
    return connection


def query(run: RunFolder, text: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of one SELECT (also DESCRIBE, SUMMARIZE, EXPLAIN). Raises ConfigError for anything else."""
    connection = connect(run)
    reads = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
    try:
        statements = connection.extract_statements(text)
        if len(statements) != 1 or statements[0].type not in reads:
            raise ConfigError("sql: exactly one statement that reads, please: SELECT, DESCRIBE, SUMMARIZE or EXPLAIN")
        result = _execute(connection, statements[0])
        return [column[0] for column in result.description or []], result.fetchall()
    except duckdb.Error as e:
        # DuckDB quotes the value that it could not convert, which an agent may have written.
        raise ConfigError(plain(f"sql: {e}")) from e


def _execute(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> duckdb.DuckDBPyConnection:
    """Run a statement. The average of a truth value, `avg(passed)`, which DuckDB lacks, is the share of true."""
    try:
        return connection.execute(statement)
    except duckdb.BinderException as e:
        if "avg(BOOLEAN)" not in str(e):
            raise
        # Only now: with a macro of that name `avg(...) filter (...)` is no longer possible.
        connection.execute("create macro avg(x) as system.main.avg(x::double)")
        return connection.execute(statement)


def print_query(run: RunFolder, text: str, output: Literal["table", "csv", "json"]) -> None:
    """Run a query and print its rows."""
    columns, rows = query(run, text)
    if run.is_done("ingest") and not run.has_output("ingest"):
        print("note: the session store was removed; the view `sessions` is empty", file=sys.stderr)
    if output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        # A file gets the values as they are; a terminal would obey the control characters in them.
        shown = [[plain(c) if isinstance(c, str) else c for c in row] for row in rows] if sys.stdout.isatty() else rows
        writer.writerows([columns, *shown])
    elif output == "json":
        for row in rows:
            print(json.dumps(dict(zip(columns, row, strict=True)), default=str))
    else:
        _print_table(columns, rows)


def _print_table(columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    table = Table()
    for column in columns:
        table.add_column(Text(plain(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value), justify=_side(value)) for value in row))
    console.print(table)
    console.print(f"{len(rows)} rows" if len(rows) != 1 else "1 row")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else plain(str(value))
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def _side(value: Any) -> Literal["left", "right"]:
    return "right" if isinstance(value, int | float) and not isinstance(value, bool) else "left"
