"""episodes -> samples: scores, advantages, verdicts. The stage runner calls `run_score`."""

from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam

from pipelines import samples, store
from pipelines.folder import RunFolder
from pipelines.progress import Progress, tick
from pipelines.rejects import make_reject
from pipelines.transforms.beam import Row, WriteRejects, WriteTable, read_rows, run_pipeline, to_row
from schemas.episode import Episode
from schemas.ids import content_id
from schemas.recipe import RunConfig, ScoreSettings
from schemas.sample import Sample
from schemas.task import Budget


def run_score(run: RunFolder, config: RunConfig, progress: Progress, beam_options: Sequence[str] = ()) -> None:
    """Replace the table `samples`: one row per agent's view, kept or not, with the reason."""
    parts = [str(path) for path in store.parts_of(run.path, "episodes")]
    tasks = [str(path) for path in store.parts_of(run.path, "tasks")]
    total = store.read_table(run.path, "episodes", ["episode_id"]).num_rows
    counter = str(run.counter("score"))

    def build(pipeline: beam.Pipeline, folder: str) -> None:
        scored = (
            pipeline
            | beam.Create(parts)
            | beam.Reshuffle()
            | beam.FlatMap(_samples_of_part, tasks=tasks, settings=config.score, counter=counter)
            | "by subgroup" >> beam.GroupByKey()
            | beam.FlatMapTuple(_compared)
            | "by text" >> beam.GroupByKey()
            | beam.FlatMapTuple(_without_duplicates)
        )
        scored | WriteTable(folder, "samples", config.parts)
        scored | beam.FlatMap(_refused) | WriteRejects(run.reject_part("score"))

    with (
        progress.stage("score", total, "episodes", run.counter("score")),
        store.replacing(run.path, "samples", config.parts) as folder,
    ):
        run_pipeline(lambda pipeline: build(pipeline, str(folder)), config.workers, beam_options)


def _samples_of_part(part: str, tasks: list[str], settings: ScoreSettings, counter: str) -> Iterator[Row]:
    rows = (row for path in tasks for row in read_rows(path, "tasks", ["task_id", "budget"]))
    budgets = {row["task_id"]: Budget.model_validate(row["budget"]) for row in rows}
    for row in read_rows(part, "episodes"):
        episode = Episode.model_validate(row)
        for sample in samples.samples_of(episode, settings, budgets.get(episode.task_id)):
            yield content_id("subgroup", *samples.subgroup_key(sample)), sample.model_dump_json().encode()
        tick(counter)


def _parse(values: Iterable[bytes]) -> list[Sample]:
    return [Sample.model_validate_json(value) for value in values]


def _compared(_: str, values: Iterable[bytes]) -> Iterator[Row]:
    for sample in samples.with_advantages(_parse(values)):
        yield samples.duplicate_key(sample), sample.model_dump_json().encode()


def _without_duplicates(_: str, values: Iterable[bytes]) -> Iterator[Row]:
    for sample in samples.without_duplicates(_parse(values)):
        yield to_row(sample, "sample_id")


def _refused(row: Row) -> Iterator[bytes]:
    verdict = Sample.model_validate_json(row[1]).verdict
    if not verdict.keep:
        yield make_reject("score", verdict.reason, subject=row[0]).model_dump_json().encode()
