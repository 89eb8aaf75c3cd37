"""Examples out of shard files, however these are cut."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.files import sha256_of
from pipelines.posttrain.examples import examples_of, shard_hashes
from schemas.errors import InputError

ROWS = [(f"s{i}", [i, i + 1, i + 2], [False, i != 3, False], ("bash", "tool_json")[i % 2]) for i in range(8)]


def write(folder: Path, rows: list[tuple], files: int) -> Path:
    for config, columns in (("tokens", ("sample_id", "input_ids", "loss_mask")), ("text", ("sample_id", "scaffold"))):
        (folder / config).mkdir(parents=True)
        for i in range(files):
            part = [
                dict(zip(("sample_id", "input_ids", "loss_mask", "scaffold"), r, strict=True)) for r in rows[i::files]
            ]
            types = {"sample_id": pa.string(), "input_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.bool_())}
            schema = pa.schema([(c, types.get(c, pa.string())) for c in columns])
            table = pa.Table.from_pylist([{c: row[c] for c in columns} for row in part], schema)
            pq.write_table(table, folder / config / f"train-{i:05d}-of-{files:05d}.parquet")
    return folder


def facts(shards: Path, **how: object) -> list[tuple]:
    return [(e.sample_id, e.input_ids.tolist(), e.loss_mask.tolist()) for e in examples_of(shards, **how)]


def test_the_cut_of_the_shards_does_not_show(tmp_path: Path) -> None:
    one, three = write(tmp_path / "one", ROWS, 1), write(tmp_path / "three", ROWS[::-1], 3)
    assert facts(one) == facts(three) == [row[:3] for row in ROWS if row[0] != "s3"]  # s3 trains nothing
    assert [row[0] for row in facts(three, scaffolds=["tool_json"])] == ["s1", "s5", "s7"]
    few, more = ({r[0] for r in facts(one, limit=n, seed=4)} for n in (3, 5))
    assert few < more
    assert facts(one, limit=3, seed=4) == facts(three, limit=3, seed=4)
    assert facts(one, limit=3, seed=4) != facts(one, limit=3, seed=5)


def test_the_hashes_are_those_of_all_files(tmp_path: Path) -> None:
    shards = write(tmp_path / "s", ROWS, 2)
    assert shard_hashes(shards) == {f"{f.parent.name}/{f.name}": sha256_of(f) for f in shards.rglob("*.parquet")}


def test_what_is_no_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the shards folder"):
        examples_of(tmp_path)
    shards = write(tmp_path / "s", ROWS, 1)
    with pytest.raises(InputError, match="no trained sample of nothing"):
        examples_of(shards, ["nothing"])
    with pytest.raises(InputError, match="s0 stands there twice"):
        examples_of(write(tmp_path / "double", [*ROWS, ROWS[0]], 2))
    (shards / "tokens" / "train-00000-of-00001.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match="train-00000"):
        examples_of(shards)
