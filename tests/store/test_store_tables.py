"""Tables of the run folder: same rows, same bytes; whole or not at all; other schemas refused."""

import itertools
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import store
from pipelines.files import atomic_file, sha256_of
from pipelines.sizes import row_bytes
from schemas.errors import InputError, StageError
from schemas.ids import content_id, shard_of
from schemas.session import Reject
from schemas.tables import arrow_schema, to_arrow


def rejects(count: int) -> list[Reject]:
    return [
        Reject(
            reject_id=content_id("reject", i),
            stage="ingest",
            reason="r" * (i % 7),
            line=i if i % 3 else None,
            detail=None,
        )
        for i in range(count)
    ]


def test_records_come_back_in_key_order_within_parts(tmp_path: Path) -> None:
    rows = rejects(700)
    store.write_table(tmp_path, "rejects", rows, parts=3)
    back = list(store.read_records(tmp_path, "rejects", Reject))
    by_part = sorted(rows, key=lambda row: (shard_of(row.reject_id, 3), row.reject_id))
    assert back == by_part
    assert store.read_table(tmp_path, "rejects").schema.equals(arrow_schema("rejects"), check_metadata=True)
    assert store.read_table(tmp_path, "rejects", ["reason"]).column_names == ["reason"]
    names = sorted(path.name for path in (tmp_path / "rejects").iterdir())
    assert names == [f"part-0000{i}-of-00003.parquet" for i in range(3)]


def test_an_empty_table_can_be_read(tmp_path: Path) -> None:
    store.write_table(tmp_path, "rejects", [], parts=2)
    assert list(store.read_records(tmp_path, "rejects", Reject)) == []
    assert len(store.read_table(tmp_path, "rejects")) == 0
    with pytest.raises(StageError, match="no table `tasks`"):
        store.read_table(tmp_path, "tasks")


def test_order_of_arrival_does_not_change_bytes(tmp_path: Path) -> None:
    rows = rejects(400)
    shuffled = random.Random(1).sample(rows, len(rows))
    for name, order in (("a", rows), ("b", shuffled)):
        store.write_table(tmp_path / name, "rejects", order, parts=2)
    for a, b in zip(store.parts_of(tmp_path / "a", "rejects"), store.parts_of(tmp_path / "b", "rejects"), strict=True):
        assert a.read_bytes() == b.read_bytes()


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 3000), max_size=6), bound=st.sampled_from([2**14, 2**16, 2**24]))
def test_batching_does_not_change_bytes(tmp_path_factory: pytest.TempPathFactory, cuts: list[int], bound: int) -> None:
    table = to_arrow("rejects", rejects(3000))
    edges = [0, *sorted(cuts), 3000]
    pieces = [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]
    folder = tmp_path_factory.mktemp("bytes")
    assert store.write_parquet(folder / "whole", table, group_bytes=bound) == 3000
    assert store.write_parquet(folder / "pieces", iter(pieces), table.schema, group_bytes=bound) == 3000
    assert sha256_of(folder / "whole") == sha256_of(folder / "pieces")
    assert pq.read_table(folder / "pieces").equals(table)


def test_row_groups_are_bounded_and_rows_kept(tmp_path: Path) -> None:
    table = to_arrow("rejects", rejects(20_000))
    store.write_parquet(tmp_path / "x", table)
    file = pq.ParquetFile(tmp_path / "x")
    groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert max(groups) <= store.GROUP_ROWS and sum(groups) == 20_000


def test_row_sizes_do_not_depend_on_slices_and_agree_with_arrow() -> None:
    rows = [
        {"s": "x" * (i % 5), "l": [1, 2, 3][: i % 4], "n": None if i % 2 else [{"a": "yy"}], "f": 1.5}
        for i in range(90)
    ]
    kind = pa.schema(
        [
            ("s", pa.string()),
            ("l", pa.list_(pa.int32())),
            ("n", pa.list_(pa.struct([("a", pa.string())]))),
            ("f", pa.float64()),
        ]
    )
    table = pa.Table.from_pylist(rows, schema=kind)
    sizes = row_bytes(table)
    pieces = [row_bytes(table.slice(a, 7)) for a in range(0, 90, 7)]
    assert np.array_equal(np.concatenate(pieces), sizes)
    expected = [4 + i % 5 + 4 + 4 * (i % 4) + 4 + (0 if i % 2 else 6) + 8 for i in range(90)]
    assert sizes.tolist() == expected


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    table = to_arrow("rejects", rejects(3))
    other = table.replace_schema_metadata({"trajmill.table": "rejects", "trajmill.version": "99"})
    (tmp_path / "rejects").mkdir()
    path = tmp_path / "rejects" / store.part_name(0, 1)
    for broken, words in [
        (other, "schema version 99"),
        (table.replace_schema_metadata(None), "schema version none"),
        (table.drop_columns(["reason"]), "columns"),
    ]:
        pq.write_table(broken, path)
        with pytest.raises(InputError, match=words):
            store.read_table(tmp_path, "rejects")
    path.write_bytes(b"PAR1 torn")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        list(store.read_records(tmp_path, "rejects", Reject))


def test_a_key_stands_once_and_in_its_own_part(tmp_path: Path) -> None:
    rows = rejects(2)
    with pytest.raises(StageError, match="stands twice"):
        store.write_table(tmp_path, "rejects", [*rows, rows[0]], parts=1)
    wrong = 1 - shard_of(rows[0].reject_id, 2)
    with pytest.raises(StageError, match="belongs to part"):
        store.write_part(tmp_path, "rejects", wrong, 2, rows[:1])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_rewrite_leaves_the_old_table(tmp_path: Path) -> None:
    store.write_table(tmp_path, "rejects", rejects(5), parts=1)
    with pytest.raises(RuntimeError), store.replacing(tmp_path, "rejects", 1) as folder:
        store.write_part(folder, "rejects", 0, 1, rejects(9))
        raise RuntimeError
    assert len(store.read_table(tmp_path, "rejects")) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["rejects"]


def test_a_private_table_stays_private(tmp_path: Path) -> None:
    (tmp_path / "rejects").mkdir(mode=0o700)
    store.write_table(tmp_path, "rejects", rejects(5), parts=1)
    assert (tmp_path / "rejects").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("state", ["new", "new+final", "old+final", "new+old", "old", "new+old+final"])
def test_repair_completes_every_state_of_a_swap(tmp_path: Path, state: str) -> None:
    paths = {"new": ".t.new", "old": ".t.old", "final": "t"}
    for kind in state.split("+"):
        (tmp_path / paths[kind]).mkdir()
        (tmp_path / paths[kind] / kind).touch()
    store.repair(tmp_path, "t")
    left = [path.name for path in tmp_path.iterdir()]
    if state == "new":
        assert left == []
    else:
        assert left == ["t"]
        kept = [path.name for path in (tmp_path / "t").iterdir()]
        assert kept == ({"new+old": ["new"], "old": ["old"]}.get(state) or ["final"])


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "x") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_one_writer_at_a_time_and_leftovers_are_swept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "tasks").mkdir(parents=True)
    (run / "tasks" / ".tmp-1-0-part").touch()
    (run / ".episodes.new").mkdir()
    with store.locked(run):
        assert not (run / "tasks" / ".tmp-1-0-part").exists() and not (run / ".episodes.new").exists()
        with pytest.raises(StageError, match="another process"), store.locked(run):
            pass
    with store.locked(run):
        pass
