"""The tables of a run folder: atomic, deterministic Parquet in, checked and streamed records out.

Every stage calls this. A table is a folder of parts; a part holds the rows that `schemas.ids.shard_of` gives it, sorted
by key. A stage writes a table into a folder beside it (`replacing`), which takes the old one's place as a whole, so a
table that can be seen is complete. What a killed writer left is put right by `locked` (or the next `replacing`).
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.files import atomic_file, fsync_folder
from pipelines.sizes import row_bytes
from schemas.errors import InputError, StageError
from schemas.ids import shard_of
from schemas.record import Record
from schemas.tables import TABLES, arrow_schema, from_arrow, to_arrow

R = TypeVar("R", bound=Record)

# Row groups are cut at these bounds, counted in rows' own sizes, so that bytes do not depend on how rows arrived.
GROUP_ROWS = 8192
GROUP_BYTES = 16 * 2**20
READ_ROWS = 64
_COALESCE_ROWS = 4096
_COALESCE_BYTES = 4 * 2**20


def write_parquet(
    path: Path, tables: pa.Table | Iterable[pa.Table], schema: pa.Schema | None = None, group_bytes: int = GROUP_BYTES
) -> int:
    """Write one Parquet file (zstd) atomically and give the number of rows.

    `tables`: one table, or an iterator of them, with `schema`; only a row group is held in memory. The same rows give
    the same bytes however they are batched (for one version of pyarrow). The file appears under `path` complete and
    fsynced, or not at all.
    """
    if isinstance(tables, pa.Table):
        schema = schema or tables.schema
        tables = [tables]
    if schema is None:
        raise ValueError("an iterator of tables needs a schema")
    rows = 0
    with (
        atomic_file(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd", compression_level=3) as w,
    ):
        for group in _row_groups(tables, schema, group_bytes):
            w.write_table(group, row_group_size=len(group))
            rows += len(group)
    return rows


def _row_groups(tables: Iterable[pa.Table], schema: pa.Schema, group_bytes: int) -> Iterator[pa.Table]:
    """The same rows as tables of one chunk each, cut at GROUP_ROWS or `group_bytes`, whichever comes first."""
    pending: list[pa.Table] = []
    rows = size = 0
    for table in _coalesced(tables, schema):
        begin = 0
        for i, row in enumerate(row_bytes(table).tolist()):
            if rows and (rows >= GROUP_ROWS or size + row > group_bytes):
                yield _one_chunk([*pending, table.slice(begin, i - begin)], schema)
                pending, begin, rows, size = [], i, 0, 0
            rows, size = rows + 1, size + row
        pending.append(table.slice(begin))
    if rows:
        yield _one_chunk(pending, schema)


def _coalesced(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """The same rows in fewer tables of one chunk each: sizing many small ones is slow. Where they end is no matter."""
    pending: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        pending.append(table)
        rows, size = rows + len(table), size + table.nbytes
        if rows >= _COALESCE_ROWS or size >= _COALESCE_BYTES:
            yield _one_chunk(pending, schema)
            pending, rows, size = [], 0, 0
    if rows:
        yield _one_chunk(pending, schema)


def _one_chunk(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(tables).cast(schema).combine_chunks()


def part_name(index: int, of: int) -> str:
    """File name of a part, numbered from 0."""
    return f"part-{index:05d}-of-{of:05d}.parquet"


def write_part(folder: Path, name: str, index: int, of: int, rows: Iterable[Record] | pa.Table) -> Path:
    """Write part `index` of table `name` into `folder` (from `replacing`), sorted by key. Safe to run twice.

    Raises StageError for a key that stands twice or belongs to another part.
    """
    key = TABLES[name].key
    table = (rows if isinstance(rows, pa.Table) else to_arrow(name, rows)).sort_by(key)
    previous = None
    for value in table.column(key).to_pylist():
        if value == previous:
            raise StageError(f"table {name}: the key {value} stands twice")
        if shard_of(value, of) != index:
            raise StageError(f"table {name}: the key {value} belongs to part {shard_of(value, of)}, not {index}")
        previous = value
    path = folder / part_name(index, of)
    write_parquet(path, table)
    return path


def write_table(run: Path, name: str, rows: Iterable[Record], parts: int) -> None:
    """Replace table `name` of a run by `rows` (all in memory)."""
    buckets: list[list[Record]] = [[] for _ in range(parts)]
    key = TABLES[name].key
    for row in rows:
        buckets[shard_of(getattr(row, key), parts)].append(row)
    with replacing(run, name, parts) as folder:
        for index, bucket in enumerate(buckets):
            write_part(folder, name, index, parts, bucket)


@contextmanager
def replacing(run: Path, name: str, parts: int | None = None) -> Iterator[Path]:
    """A new, empty folder that becomes `run/name` when the block ends well, and is removed when it raises.

    With `parts`, parts that no row fell into are written empty, so that every table can be read.
    """
    new, old, final = run / f".{name}.new", run / f".{name}.old", run / name
    repair(run, name)
    new.mkdir(parents=True)
    if final.exists():
        new.chmod(final.stat().st_mode)  # a private table stays private
    try:
        yield new
        for index in range(parts or 0):
            if parts and not (new / part_name(index, parts)).exists():
                write_part(new, name, index, parts, [])
    except BaseException:
        shutil.rmtree(new)
        raise
    fsync_folder(new)
    # Two renames: a reader between them finds no table, never half of one, and `repair` completes a swap cut short.
    if final.exists():
        final.rename(old)
    new.rename(final)
    fsync_folder(run)
    shutil.rmtree(old, ignore_errors=True)


def repair(run: Path, name: str) -> None:
    """Bring table `name` back to a complete state after a writer was killed.

    `.name.old` without `name` means that the new one was complete and the swap under way: it is finished. In every
    other state `.name.new` may be half written and goes, as does an old table that has been replaced.
    """
    new, old, final = run / f".{name}.new", run / f".{name}.old", run / name
    if old.exists() and not final.exists():
        (new if new.exists() else old).rename(final)
        fsync_folder(run)
    for leftover in (new, old):
        if leftover.exists():
            shutil.rmtree(leftover)


@contextmanager
def locked(run: Path) -> Iterator[Path]:
    """Hold a run folder for writing: made when absent, leftovers of killed writers repaired and swept.

    Every command that writes goes through here. Raises StageError when another process holds the folder. The lock ends
    with the process, however it ends.
    """
    run.mkdir(parents=True, exist_ok=True)
    handle = os.open(run, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StageError(f"{run}: another process is writing into this run folder") from error
        for path in sorted(run.glob(".*.new")) + sorted(run.glob(".*.old")):
            repair(run, path.name[1:].rsplit(".", 1)[0])
        for path in run.rglob(".tmp-*"):
            path.unlink(missing_ok=True)
        yield run
    finally:
        os.close(handle)


def parts_of(run: Path, name: str) -> list[Path]:
    """The parts of a table in order. Raises StageError when the run has no such table."""
    paths = sorted((run / name).glob("part-*.parquet"))
    if not paths:
        raise StageError(f"{run}: there is no table `{name}`; run the stage that makes it first")
    return paths


def open_part(path: Path, name: str) -> pq.ParquetFile:
    """A part, its schema checked against this program's. Raises InputError for any other."""
    try:
        part = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file: {error}") from error
    found = part.schema_arrow
    metadata = found.metadata or {}
    table, version = (metadata.get(f"trajmill.{k}".encode(), b"none").decode() for k in ("table", "version"))
    if table != name or version != str(TABLES[name].version):
        raise InputError(
            f"{path}: holds table {table} in schema version {version}; "
            f"expected {name} in version {TABLES[name].version}: make it again with this version of trajmill"
        )
    if not found.equals(arrow_schema(name), check_metadata=False):
        raise InputError(f"{path}: its columns are not those of {name} version {version}")
    return part


def read_batches(paths: Sequence[Path], name: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of at most READ_ROWS rows, part by part, each in key order; one row group is in memory at a time."""
    for path in paths:
        with open_part(path, name) as part:
            yield from part.iter_batches(batch_size=READ_ROWS, columns=columns)


def read_range(path: Path, name: str, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Rows [start, stop) of one part; row groups outside are not read."""
    begin = 0
    with open_part(path, name) as part:
        for group in range(part.num_row_groups):
            end = begin + part.metadata.row_group(group).num_rows
            if begin < stop and start < end:
                rows = part.read_row_group(group)
                yield from rows.slice(max(start - begin, 0), min(stop, end) - max(start, begin)).to_batches()
            begin = end


def read_table(run: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    """A whole table in memory, part by part, each in key order."""
    schema = arrow_schema(name)
    if columns is not None:
        schema = pa.schema([schema.field(c) for c in columns])
    batches: list[Any] = list(read_batches(parts_of(run, name), name, columns))
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def read_records(run: Path, name: str, record: type[R]) -> Iterator[R]:
    """The rows of a table as validated records, streamed."""
    for batch in read_batches(parts_of(run, name), name):
        yield from from_arrow(record, batch)
