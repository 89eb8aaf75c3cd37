"""pydantic -> Parquet file -> pydantic gives equal records, for every table and any values its types allow."""

import io
import types
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.docs import tables_page
from schemas.record import Record
from schemas.tables import TABLES, arrow_schema, from_arrow, to_arrow

ROOT = Path(__file__).resolve().parents[2]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INT64 = st.integers(-(2**63), 2**63 - 1)


def bounded(base: Any, extras: tuple[Any, ...]) -> st.SearchStrategy:
    """Numbers within the annotation's bounds; at the default widths where it names none."""
    limits: dict[str, Any] = {}
    for extra in extras:
        for constraint in getattr(extra, "metadata", [extra]):
            for name in ("ge", "le", "lt", "gt"):
                if getattr(constraint, name, None) is not None:
                    limits[name] = getattr(constraint, name)
    if base is int:
        return st.integers(limits.get("ge", -(2**63)), limits.get("le", limits.get("lt", 2**63) - 1))
    if "float32" in extras:
        return st.floats(-(2.0**127), 2.0**127, width=32)
    return st.floats(limits.get("ge"), limits.get("le"), allow_nan=False)


def strategy(annotation: Any) -> st.SearchStrategy:
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *extras = get_args(annotation)
        return bounded(base, tuple(extras)) if base in (int, float) else strategy(base)
    if origin in (Union, types.UnionType):
        return st.one_of(*(st.none() if a is type(None) else strategy(a) for a in get_args(annotation)))
    if origin is Literal:
        return st.sampled_from(get_args(annotation))
    if origin is list:
        return st.lists(strategy(get_args(annotation)[0]), max_size=2)
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return records(annotation)
    if annotation is datetime:
        return st.datetimes(datetime(1678, 1, 1), datetime(2262, 1, 1)).map(lambda t: t.replace(tzinfo=UTC))
    plain = {str: TEXT, int: INT64, bool: st.booleans(), float: st.floats(allow_nan=False, allow_infinity=False)}
    return plain[annotation]


def records(record: type[Record]) -> st.SearchStrategy:
    fields = {
        name: strategy(Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation)
        for name, info in record.model_fields.items()
    }
    return st.builds(record, **fields)


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=30)
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    record = TABLES[name].record
    rows = data.draw(st.lists(records(record), max_size=3))
    file = io.BytesIO()
    pq.write_table(to_arrow(name, rows), file)
    table = pq.read_table(file)
    assert table.schema.equals(arrow_schema(name), check_metadata=True)
    assert from_arrow(record, table) == rows


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=10)
@given(data=st.data())
def test_json_round_trip(name: str, data: st.DataObject) -> None:
    """What Beam shuffles."""
    row = data.draw(records(TABLES[name].record))
    assert type(row).model_validate_json(row.model_dump_json()) == row


@pytest.mark.parametrize("name", TABLES)
def test_metadata(name: str) -> None:
    schema = arrow_schema(name)
    assert schema.metadata[b"trajmill.table"] == name.encode()
    assert int(schema.metadata[b"trajmill.version"]) >= 1
    assert all(field.metadata[b"description"] for field in schema)


def test_absent_is_null_and_never_zero() -> None:
    table = to_arrow("rejects", [TABLES["rejects"].record(reject_id="r", stage="ingest", reason="x")])
    assert table.to_pylist()[0]["line"] is None


def test_docs_page_is_current() -> None:
    page = (ROOT / "docs" / "tables.md").read_text()
    assert page == tables_page(), "run: make docs"
