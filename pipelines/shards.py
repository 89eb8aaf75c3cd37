"""Kept samples into training shards: two configurations, size-bounded files, a manifest and a dataset card.

Called by the shards stage. Four steps, of which the second and the fourth are cheap and the others have independent
units, so that Beam can spread them:

1. `write_rows`, per part of the samples table: kept samples become a part of text rows and one of token rows;
2. `plan_shards`: keys and sizes are read first, and decide which rows go into which file;
3. `write_shard`, per file: its rows are one range of every part, read, sorted and written;
4. `finish`: card, and the manifest last.

Memory is bounded by one shard and the keys (about 40 bytes a sample), not by the number of samples. Neither the number
of parts nor of workers shows in the files. `write_shards` does all four in order.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agents.engine.base import Tokenizer
from pipelines import cards, store
from pipelines.files import sha256_of
from pipelines.rows import text_row, token_row
from pipelines.sizes import row_bytes
from schemas.recipe import ShardSettings
from schemas.sample import Sample
from schemas.tables import TABLES, arrow_schema, from_arrow, to_arrow

Config = Literal["text", "tokens"]
CONFIGS: tuple[Config, ...] = ("text", "tokens")
_ROWS = ".rows"
_BATCH = 64


@dataclass(frozen=True)
class Shard:
    """One file to write: `ranges[i]` is the [start, stop) of rows that it takes from part i."""

    config: Config
    index: int
    of: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def path(self) -> str:
        """Below the shards folder."""
        return f"{self.config}/train-{self.index:05d}-of-{self.of:05d}.parquet"


@dataclass(frozen=True)
class ShardFile:
    """A written file, as the manifest lists it. `arrow_bytes`: before compression."""

    path: str
    config: Config
    rows: int
    bytes: int
    arrow_bytes: int
    sha256: str
    schema_version: int
    first: str | None
    last: str | None


@dataclass(frozen=True)
class ShardFacts:
    """What the manifest says of the run: its seed, the hash of its configuration, and the model of the tokenizer."""

    seed: int
    config_hash: str
    tokenizer: str


def write_shards(run: Path, tokenizer: Tokenizer, settings: ShardSettings, facts: ShardFacts) -> list[ShardFile]:
    """Replace `run/shards` by the kept samples of the samples table; the old shards stay until the new are whole."""
    with store.replacing(run, "shards") as folder:
        parts = store.parts_of(run, "samples")
        for index, part in enumerate(parts):
            write_rows(part, folder, index, len(parts), tokenizer)
        files = [write_shard(shard, folder) for config in CONFIGS for shard in plan_shards(folder, config, settings)]
        finish(run, folder, files, facts)
    return files


def write_rows(part: Path, folder: Path, index: int, of: int, tokenizer: Tokenizer) -> None:
    """Text and token rows of the kept samples of one part of the samples table, in the order of their ids."""
    for config in CONFIGS:
        target = folder / _ROWS / config / store.part_name(index, of)
        target.parent.mkdir(parents=True, exist_ok=True)
        # One pass for each configuration: the part is read twice, and never held.
        store.write_parquet(target, _rows(part, config, tokenizer), arrow_schema(config))


def _rows(part: Path, config: Config, tokenizer: Tokenizer) -> Iterator[pa.Table]:
    samples = _kept(part)
    while batch := list(islice(samples, _BATCH)):
        yield to_arrow(config, [text_row(s) if config == "text" else token_row(s, tokenizer) for s in batch])


def _kept(part: Path) -> Iterator[Sample]:
    for batch in store.read_batches([part], "samples"):
        keep = pc.struct_field(batch.column("verdict"), "keep")
        yield from from_arrow(Sample, batch.filter(keep))


def plan_shards(folder: Path, config: Config, settings: ShardSettings) -> list[Shard]:
    """The files of one configuration: rows by sample_id, each file at most `max_mb` before compression.

    A single row above the bound gets a file of its own; no rows at all give one empty file.
    """
    parts = _row_parts(folder, config)
    keys, sizes, owners = _keys_and_sizes(parts, config)
    order = pc.sort_indices(keys).to_numpy()
    bounds = _cut(sizes[order], int(settings.max_mb * 2**20))
    # Parts are sorted, so the rows of a file are one range of each part: counts before it and within it.
    starts = np.zeros(len(parts), dtype=np.int64)
    shards = []
    for index, (begin, end) in enumerate(pairwise(bounds)):
        stops = starts + np.bincount(owners[order[begin:end]], minlength=len(parts))
        ranges = tuple(zip(starts.tolist(), stops.tolist(), strict=True))
        shards.append(Shard(config, index, len(bounds) - 1, ranges))
        starts = stops
    return shards


def _row_parts(folder: Path, config: Config) -> list[Path]:
    return store.parts_of(folder / _ROWS, config)


def _keys_and_sizes(
    parts: Sequence[Path], config: Config
) -> tuple[pa.ChunkedArray, npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Of all rows, part by part: sample_id, bytes, number of the part."""
    keys: list[pa.Array] = []
    sizes: list[npt.NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    owners: list[npt.NDArray[np.int32]] = [np.zeros(0, dtype=np.int32)]
    for number, part in enumerate(parts):
        for batch in store.read_batches([part], config):
            keys.append(batch.column("sample_id"))
            sizes.append(row_bytes(batch))
            owners.append(np.full(len(batch), number, dtype=np.int32))
    return pa.chunked_array(keys, type=pa.string()), np.concatenate(sizes), np.concatenate(owners)


def _cut(sizes: npt.NDArray[np.int64], most: int) -> list[int]:
    """Boundaries [0, ..., rows] of consecutive files of at most `most` bytes."""
    bounds, size = [0], 0
    for row, bytes_ in enumerate(sizes.tolist()):
        if size and size + bytes_ > most:
            bounds.append(row)
            size = 0
        size += bytes_
    return [*bounds, len(sizes)]


def write_shard(shard: Shard, folder: Path) -> ShardFile:
    """Write one planned file below the shards folder. Safe to run twice: the same bytes."""
    schema = arrow_schema(shard.config)
    pieces = [
        piece
        for part, (start, stop) in zip(_row_parts(folder, shard.config), shard.ranges, strict=True)
        for piece in store.read_range(part, shard.config, start, stop)
    ]
    table = pa.Table.from_batches(pieces, schema=schema).sort_by("sample_id")
    path = folder / shard.path
    path.parent.mkdir(exist_ok=True)
    store.write_parquet(path, table, schema)
    ids = table.column("sample_id")
    return ShardFile(
        path=shard.path,
        config=shard.config,
        rows=len(table),
        bytes=path.stat().st_size,
        arrow_bytes=int(row_bytes(table).sum()),
        sha256=sha256_of(path),
        schema_version=TABLES[shard.config].version,
        first=ids[0].as_py() if len(table) else None,
        last=ids[-1].as_py() if len(table) else None,
    )


def finish(run: Path, folder: Path, files: Sequence[ShardFile], facts: ShardFacts) -> None:
    """Write card and manifest, the manifest last, and remove the intermediate rows."""
    shutil.rmtree(folder / _ROWS)
    cards.write(folder, sorted(files, key=lambda file: file.path), facts, count_samples(run))


def count_samples(run: Path) -> dict[str, Any]:
    """Samples of a run: how many are kept, in all and by policy, and how many refused by reason."""
    verdicts: Counter[str] = Counter()
    policies: Counter[str] = Counter()
    parts = store.parts_of(run, "samples")
    for batch in store.read_batches(parts, "samples", ["policy", "verdict"]):
        for policy, verdict in zip(
            batch.column("policy").to_pylist(), batch.column("verdict").to_pylist(), strict=True
        ):
            verdicts[verdict["reason"]] += 1
            if verdict["keep"]:
                policies[policy] += 1
    kept = verdicts.pop("kept", 0)
    return {"kept": kept, "rejected": dict(sorted(verdicts.items())), "kept_by_policy": dict(sorted(policies.items()))}
