"""Training examples out of shards. Called by `sft`'s callers: the `train` command and the loop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.files import sha256_of
from schemas.errors import InputError
from schemas.ids import derive_seed


@dataclass(frozen=True, eq=False)
class Example:
    """One sample: token ids [tokens] int32, and whether the loss covers each, [tokens] bool."""

    sample_id: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]


def examples_of(
    shards: Path, scaffolds: Sequence[str] | None = None, limit: int | None = None, seed: int = 0
) -> list[Example]:
    """The samples of a run's `shards` folder in the order of their ids, however the shards are cut.

    Of `scaffolds` alone where given; at most `limit`, drawn by `seed`: a larger limit only adds. Samples of which no
    token is trained are left out: nothing can be learnt from them. InputError when nothing is left.
    """
    wanted = None if scaffolds is None else _ids_of(shards, scaffolds)
    found: dict[str, Example] = {}
    for table in _tables(shards, "tokens", ["sample_id", "input_ids", "loss_mask"]):
        for sample_id, ids, mask in zip(*(table.column(i) for i in range(3)), strict=True):
            name = sample_id.as_py()
            if wanted is not None and name not in wanted:
                continue
            example = Example(name, ids.values.to_numpy(), mask.values.to_numpy(zero_copy_only=False))
            if name in found:
                raise InputError(f"{shards}: sample {name} stands there twice")
            if len(example.input_ids) != len(example.loss_mask):
                raise InputError(f"{shards}: sample {name} has input_ids and loss_mask of different lengths")
            # The first token has nothing before it that could predict it.
            if example.loss_mask[1:].any():
                found[name] = example
    if not found:
        raise InputError(f"{shards} has no trained sample" + (f" of {', '.join(scaffolds)}" if scaffolds else ""))
    drawn = sorted(found, key=lambda name: derive_seed("examples", seed, name))[:limit]
    return [found[name] for name in sorted(drawn)]


def shard_hashes(shards: Path) -> dict[str, str]:
    """SHA-256 of every file of the two configurations, by its path below the folder."""
    return {f"{f.parent.name}/{f.name}": sha256_of(f) for part in ("text", "tokens") for f in shard_files(shards, part)}


def shard_files(shards: Path, config: str) -> list[Path]:
    """The Parquet files of one configuration of a `shards` folder, in order. InputError when there are none."""
    files = sorted((shards / config).glob("*.parquet"))
    if not files:
        raise InputError(f"{shards / config} holds no .parquet file: not the shards folder of a run")
    return files


def _ids_of(shards: Path, scaffolds: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for table in _tables(shards, "text", ["sample_id", "scaffold"]):
        rows = zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True)
        found |= {sample_id for sample_id, scaffold in rows if scaffold in scaffolds}
    return found


def _tables(shards: Path, config: str, columns: list[str]) -> Iterator[pa.Table]:
    for file in shard_files(shards, config):
        try:
            yield pq.read_table(file, columns=columns)
        except (pa.ArrowInvalid, OSError, KeyError) as error:
            raise InputError(f"{file}: {error}") from error
