"""samples -> shards: Parquet files for trainers, with manifest and card. The stage runner calls `run_shards`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import apache_beam as beam
import orjson

from agents.engine.files import SMOLLM2
from agents.engine.tokenizer import load_tokenizer
from pipelines import shards, store
from pipelines.folder import RunFolder, config_hash
from pipelines.progress import Progress, tick
from pipelines.transforms.beam import run_pipeline
from schemas.recipe import RunConfig, ShardSettings


def run_shards(run: RunFolder, config: RunConfig, progress: Progress, beam_options: Sequence[str] = ()) -> None:
    """Replace the shards. Steps and their order are those of `pipelines.shards`."""
    parts = [(index, str(path)) for index, path in enumerate(store.parts_of(run.path, "samples"))]
    # A model behind a URL brings no tokenizer: blueprint rows are then written for the embedded student.
    model = SMOLLM2 if config.engine.url else config.engine.model
    facts = shards.ShardFacts(config.seed, config_hash(config), Path(model).name)
    counter = str(run.counter("shards"))

    def build(pipeline: beam.Pipeline, folder: str) -> None:
        (
            pipeline
            | beam.Create(parts)
            | "spread parts" >> beam.Reshuffle()
            | beam.FlatMap(_write_rows, folder=folder, of=len(parts), model=model, counter=counter)
            | "all rows" >> beam.GroupByKey()
            | beam.FlatMap(_plan, folder=folder, settings=config.shards)
            | "spread shards" >> beam.Reshuffle()
            | beam.Map(_write_shard, folder=folder, counter=counter)
            | "all shards" >> beam.GroupByKey()
            | beam.Map(_finish, run=str(run.path), folder=folder, facts=facts)
        )

    with (
        progress.stage("shards", None, "files", run.counter("shards")),
        store.replacing(run.path, "shards") as folder,
    ):
        run_pipeline(lambda pipeline: build(pipeline, str(folder)), config.workers, beam_options)


def _write_rows(
    part: tuple[int, str], folder: str, of: int, model: str, counter: str
) -> Iterator[tuple[shards.Config, int]]:
    index, path = part
    shards.write_rows(Path(path), Path(folder), index, of, load_tokenizer(model))
    tick(counter)
    yield from ((config, index) for config in shards.CONFIGS)


def _plan(group: tuple[shards.Config, Iterable[int]], folder: str, settings: ShardSettings) -> Iterator[bytes]:
    for shard in shards.plan_shards(Path(folder), group[0], settings):
        yield orjson.dumps(asdict(shard))


def _write_shard(data: bytes, folder: str, counter: str) -> tuple[str, bytes]:
    fields = orjson.loads(data)
    shard = shards.Shard(**fields | {"ranges": tuple((start, stop) for start, stop in fields["ranges"])})
    written = shards.write_shard(shard, Path(folder))
    tick(counter)
    return "", orjson.dumps(asdict(written))


def _finish(group: tuple[str, Iterable[bytes]], run: str, folder: str, facts: shards.ShardFacts) -> str:
    written = [shards.ShardFile(**orjson.loads(data)) for data in group[1]]
    shards.finish(Path(run), Path(folder), written, facts)
    return folder
