"""Shards: deterministic, bounded, described by their manifest, read by datasets, DuckDB and polars."""

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pytest
from byte_tokenizer import ByteTokenizer
from episode_factory import episode

from pipelines import store
from pipelines.files import sha256_of
from pipelines.rows import text_row, token_row
from pipelines.samples import score
from pipelines.shards import ShardFacts, write_shards
from schemas.recipe import ScoreSettings, ShardSettings
from schemas.sample import Sample, TextRow, TokenRow
from schemas.tables import TABLES, from_arrow

FACTS = ShardFacts(seed=7, config_hash="abc", tokenizer="bytes")
SMALL = ShardSettings(max_mb=0.02)


def samples(count: int) -> list[Sample]:
    episodes = [
        episode(i, policy="engine" if i % 3 == 0 else "blueprint", passed=i % 5 != 0, task_id=f"task_{i}")
        for i in range(count)
    ]
    return score(episodes, ScoreSettings())


def run_with(path: Path, rows: list[Sample], parts: int) -> Path:
    store.write_table(path, "samples", rows, parts)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = run_with(tmp_path_factory.mktemp("shards") / "run", samples(150), parts=3)
    write_shards(run, ByteTokenizer(), SMALL, FACTS)
    return run


def test_every_kept_sample_stands_once_in_both_configurations(run: Path) -> None:
    kept = sorted((s for s in samples(150) if s.verdict.keep), key=lambda s: s.sample_id)
    for config, record, make in (("text", TextRow, text_row), ("tokens", TokenRow, None)):
        paths = sorted((run / "shards" / config).iterdir())
        assert len(paths) > 1
        rows = [row for batch in store.read_batches(paths, config) for row in from_arrow(record, batch)]
        assert rows == [make(s) if make else token_row(s, ByteTokenizer()) for s in kept]
        assert [p.name for p in paths] == [f"train-{i:05d}-of-{len(paths):05d}.parquet" for i in range(len(paths))]


def test_the_manifest_is_true(run: Path) -> None:
    manifest = json.loads((run / "shards" / "manifest.json").read_text())
    listed = {file["path"]: file for file in manifest["files"]}
    on_disk = {str(p.relative_to(run / "shards")) for p in (run / "shards").rglob("*.parquet")}
    assert set(listed) == on_disk
    for path, file in listed.items():
        whole = run / "shards" / path
        assert file["sha256"] == sha256_of(whole) and file["bytes"] == whole.stat().st_size
        assert file["arrow_bytes"] <= SMALL.max_mb * 2**20 and file["schema_version"] == TABLES[file["config"]].version
        assert file["rows"] == len(pl.read_parquet(whole)) > 0
    made = samples(150)
    assert manifest["samples"]["kept"] == sum(s.verdict.keep for s in made)
    assert manifest["samples"]["rejected"] == {"not_passed": 30}
    assert manifest["samples"]["synthetic"] == sum(s.verdict.keep and s.policy == "blueprint" for s in made)
    assert manifest["samples"]["synthetic"] + manifest["samples"]["sampled"] == manifest["samples"]["kept"]
    assert manifest["seed"] == 7 and manifest["config_hash"] == "abc"
    assert sorted(p.name for p in (run / "shards").iterdir()) == ["README.md", "manifest.json", "text", "tokens"]


def test_what_no_model_chose_is_synthetic(tmp_path: Path) -> None:
    made = score([episode(i, policy=p) for i, p in enumerate(["blueprint", "scripted", "engine"])], ScoreSettings())
    run = run_with(tmp_path / "run", made, parts=1)
    write_shards(run, ByteTokenizer(), SMALL, FACTS)
    counts = json.loads((run / "shards" / "manifest.json").read_text())["samples"]
    assert (counts["synthetic"], counts["sampled"]) == (2, 1)


def test_neither_parts_nor_repetition_change_bytes(run: Path, tmp_path: Path) -> None:
    other = run_with(tmp_path / "other", samples(150)[::-1], parts=5)
    write_shards(other, ByteTokenizer(), SMALL, FACTS)
    first = {p.relative_to(run): p.read_bytes() for p in (run / "shards").rglob("*") if p.is_file()}
    write_shards(run, ByteTokenizer(), SMALL, FACTS)
    again = {p.relative_to(run): p.read_bytes() for p in (run / "shards").rglob("*") if p.is_file()}
    assert (
        first == again == {p.relative_to(other): p.read_bytes() for p in (other / "shards").rglob("*") if p.is_file()}
    )


def test_duckdb_and_polars_join_the_configurations(run: Path) -> None:
    text, tokens = (f"{run}/shards/{config}/*.parquet" for config in ("text", "tokens"))
    (count, masked) = duckdb.sql(
        f"select count(*), min(list_sum(loss_mask::int[])) from '{text}' join '{tokens}' using (sample_id)"
    ).fetchall()[0]
    assert count == sum(s.verdict.keep for s in samples(150)) and masked > 0
    joined = pl.read_parquet(text).join(pl.read_parquet(tokens), on="sample_id")
    assert len(joined) == count
    assert joined["messages"][0].struct.field("role")[0] == "system"


def test_datasets_loads_the_files_and_the_card(run: Path, tmp_path: Path) -> None:
    script = f"""
from datasets import load_dataset
rows = load_dataset("parquet", data_files={str(run / "shards" / "tokens" / "*.parquet")!r}, split="train")
text = load_dataset({str(run / "shards")!r}, "text", split="train")
tokens = load_dataset({str(run / "shards")!r}, "tokens", split="train")
assert rows[0]["sample_id"] == text[0]["sample_id"] == tokens[0]["sample_id"]
assert text[0]["messages"][0]["role"] == "system"
print(len(rows), len(text), len(tokens))
"""
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kept = sum(s.verdict.keep for s in samples(150))
    assert done.stdout.split() == [str(kept)] * 3


def test_no_kept_sample_gives_one_empty_file(tmp_path: Path) -> None:
    run = run_with(tmp_path, score([episode(1, passed=False)], ScoreSettings()), parts=2)
    files = write_shards(run, ByteTokenizer(), SMALL, FACTS)
    assert [(f.path, f.rows) for f in files] == [
        ("text/train-00000-of-00001.parquet", 0),
        ("tokens/train-00000-of-00001.parquet", 0),
    ]
    assert len(pl.read_parquet(run / "shards" / files[0].path)) == 0


def test_a_row_above_the_bound_gets_its_own_file(tmp_path: Path) -> None:
    run = run_with(tmp_path, samples(12), parts=1)
    files = write_shards(run, ByteTokenizer(), ShardSettings(max_mb=1e-6), FACTS)
    assert {f.rows for f in files} == {1}
