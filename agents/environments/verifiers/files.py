"""Verifies files: a result's rows, lines, where files ended up, what must not change. Runs inside the sandbox.

`params.json` is {"points": {name: {"check": ..., ...}}}. Nothing of the workspace is ever executed here.
"""

# As few imports as possible: this starts for every verification.
# ruff: noqa: PTH100, PTH112, PTH114, PTH118, PTH120, PTH123
import csv
import hashlib
import io
import json
import os
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import workfiles

BAD_INPUT = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
    csv.Error,
    sqlite3.Error,
)
TOLERANCE = 0.0101
Spec = dict[str, Any]


def _text(path: str) -> str:
    return str(workfiles.read(path).decode("utf-8-sig"))


def _rows(spec: Spec) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of a result in CSV or as a JSON list of objects; cells of JSON keep their type."""
    text = _text(spec["path"])
    if spec["format"] == "csv":
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if any(cell.strip() for cell in row)]
        return [cell.strip() for cell in rows[0]] if rows else [], rows[1:]
    objects = json.loads(text)
    if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
        raise ValueError("not a list of objects")
    columns = spec["columns"]
    if any(sorted(item) != sorted(columns) for item in objects):
        raise ValueError("other keys")
    return columns if objects else [], [[item[column] for column in columns] for item in objects]


def _same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, int | float):
        return not isinstance(actual, bool) and abs(float(actual) - expected) <= TOLERANCE
    return isinstance(actual, str) and actual.strip() == expected


def _same_row(actual: list[Any], expected: list[Any]) -> bool:
    return len(actual) == len(expected) and all(map(_same, actual, expected))


def check_columns(spec: Spec) -> bool:
    """The result has exactly these columns."""
    return bool(_rows(spec)[0] == spec["columns"])


def check_rows(spec: Spec) -> bool:
    """The result has exactly these rows in this order; numbers agree within a hundredth."""
    rows = _rows(spec)[1]
    return len(rows) == len(spec["rows"]) and all(map(_same_row, rows, spec["rows"]))


def check_lines(spec: Spec) -> bool:
    """A text file has exactly these lines; blank lines and white space at the ends are ignored."""
    lines = [line.strip() for line in _text(spec["path"]).splitlines() if line.strip()]
    lines = [line.removeprefix("./") for line in lines] if spec.get("paths") else lines
    return bool(lines == spec["lines"])


def check_present(spec: Spec) -> bool:
    """Every path is a regular file with this sha256."""
    return all(workfiles.digest(path) == digest for path, digest in spec["files"].items())


def check_absent(spec: Spec) -> bool:
    """None of the paths exists, not even as a dangling link."""
    return not any(os.path.lexists(path) for path in spec["paths"])


def check_folders(spec: Spec) -> bool:
    """Every path is a folder, not a link to one."""
    return all(os.path.isdir(path) and not os.path.islink(path) for path in spec["paths"])


def check_contents(spec: Spec) -> bool:
    """Every content is still in some file, as often as it must be."""
    have = [workfiles.digest(path) for path in workfiles.listing()]
    return all(have.count(digest) >= spec["digests"].count(digest) for digest in set(spec["digests"]))


def check_database(spec: Spec) -> bool:
    """The tables of an SQLite file still have these rows. Work is bounded: a hostile view could run for ever."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(workfiles.read(spec["path"]))
        connection.set_progress_handler(lambda: 1, 5_000_000)
        for table, expected in spec["tables"].items():
            rows = connection.execute(f'SELECT * FROM "{table}" ORDER BY 1, rowid LIMIT 100000').fetchall()  # noqa: S608
            text = json.dumps(rows, ensure_ascii=False)
            if hashlib.sha256(text.encode()).hexdigest() != expected:
                return False
        return True
    finally:
        connection.close()


CHECKS: dict[str, Callable[[Spec], bool]] = {
    "columns": check_columns,
    "rows": check_rows,
    "lines": check_lines,
    "present": check_present,
    "absent": check_absent,
    "folders": check_folders,
    "contents": check_contents,
    "database": check_database,
}


def main() -> None:
    """Print the points as the last line."""
    nonce = sys.stdin.read(256).strip()
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "params.json"), encoding="utf-8") as handle:
        points = json.load(handle)["points"]
    csv.field_size_limit(1 << 20)
    results: dict[str, bool] = {}
    for name, spec in points.items():
        try:
            results[name] = bool(CHECKS[spec["check"]](spec))
        except BAD_INPUT as error:
            print(f"{name}: {type(error).__name__}")
            results[name] = False
    print(json.dumps({"nonce": nonce, "points": results}))


if __name__ == "__main__":
    main()
