"""The Arrow schema of every table, its version, and the way between records and Arrow.

Schemas follow from the annotations of the records alone, never from data. A type without one fixed Arrow form (a map,
Any, a union other than with None) is a TypeError at import.
"""

import types
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import pyarrow as pa

from schemas.episode import Episode
from schemas.pattern import UsagePattern
from schemas.record import Record
from schemas.sample import Sample, TextRow, TokenRow
from schemas.session import Reject, Session
from schemas.task import Task

R = TypeVar("R", bound=Record)

_SCALARS: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", tz="UTC"),
}
_NARROW = {"int32": pa.int32(), "float32": pa.float32()}


@dataclass(frozen=True)
class TableSpec:
    """A table of the run folder: its record, the column that names a row, and the version of its schema."""

    name: str
    record: type[Record]
    key: str
    version: int = 1


TABLES = {
    spec.name: spec
    for spec in (
        TableSpec("sessions", Session, "session_id"),
        TableSpec("patterns", UsagePattern, "pattern_id"),
        TableSpec("tasks", Task, "task_id"),
        TableSpec("episodes", Episode, "episode_id", version=2),
        TableSpec("samples", Sample, "sample_id", version=2),
        TableSpec("rejects", Reject, "reject_id"),
        TableSpec("text", TextRow, "sample_id", version=2),
        TableSpec("tokens", TokenRow, "sample_id", version=2),
    )
}


def _arrow_type(annotation: Any, where: str) -> tuple[pa.DataType, bool]:
    """(Arrow type, nullable) of a field's annotation."""
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *extras = get_args(annotation)
        narrow = next((_NARROW[e] for e in extras if isinstance(e, str) and e in _NARROW), None)
        if narrow is not None:
            return narrow, False
        return _arrow_type(base, where)
    if origin in (Union, types.UnionType):
        members = [a for a in get_args(annotation) if a is not type(None)]
        if len(members) != 1:
            raise TypeError(f"{where}: a union has no single Arrow type")
        return _arrow_type(members[0], where)[0], True
    if origin is Literal and all(isinstance(a, str) for a in get_args(annotation)):
        return pa.string(), False
    if origin is list:
        item, nullable = _arrow_type(get_args(annotation)[0], where)
        return pa.list_(pa.field("element", item, nullable=nullable)), False
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return pa.struct(_fields(annotation)), False
    if annotation in _SCALARS:
        return _SCALARS[annotation], False
    raise TypeError(f"{where}: {annotation!r} has no fixed Arrow type; use a JSON string in a field named *_json")


def _fields(record: type[Record]) -> list[pa.Field]:
    fields = []
    for name, info in record.model_fields.items():
        where = f"{record.__name__}.{name}"
        annotation = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        kind, nullable = _arrow_type(annotation, where)
        if not info.description:
            raise TypeError(f"{where}: a column needs a docstring")
        fields.append(pa.field(name, kind, nullable=nullable, metadata={"description": info.description}))
    if not fields:
        raise TypeError(f"{record.__name__}: an empty struct cannot be written to Parquet")
    return fields


@lru_cache
def arrow_schema(name: str) -> pa.Schema:
    """The schema of table `name`, column descriptions and `trajmill.table`, `trajmill.version` in its metadata."""
    spec = TABLES[name]
    return pa.schema(
        _fields(spec.record), metadata={"trajmill.table": spec.name, "trajmill.version": str(spec.version)}
    )


def to_arrow(name: str, rows: Iterable[Record]) -> pa.Table:
    """Records of table `name` as an Arrow table."""
    return pa.Table.from_pylist([row.model_dump() for row in rows], schema=arrow_schema(name))


def from_arrow(record: type[R], table: pa.Table | pa.RecordBatch) -> list[R]:
    """Rows of an Arrow table as validated records."""
    return [record.model_validate(row) for row in table.to_pylist()]
