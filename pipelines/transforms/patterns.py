"""sessions -> patterns: redact, count, merge, release under k-anonymity. The stage runner calls `run_patterns`."""

from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.transforms.combiners import Count

from pipelines import patterns, store
from pipelines.folder import RunFolder
from pipelines.progress import Progress, tick
from pipelines.redact import redact_session
from pipelines.rejects import make_reject
from pipelines.transforms.beam import (
    REJECTS,
    ROWS,
    Refused,
    Row,
    WriteRejects,
    WriteTable,
    read_rows,
    refused,
    run_pipeline,
    to_row,
)
from schemas.errors import StageError
from schemas.recipe import PatternSettings, RunConfig
from schemas.session import Session


def run_patterns(run: RunFolder, config: RunConfig, progress: Progress, beam_options: Sequence[str] = ()) -> None:
    """Replace the table `patterns`. What is suppressed becomes one reject each that says nothing but why.

    Raises StageError when there is no session at all.
    """
    parts = [str(path) for path in store.parts_of(run.path, "sessions")]
    total = store.read_table(run.path, "sessions", ["session_id"]).num_rows
    if not total:
        raise StageError("patterns: no session could be read from the logs; the rejects of stage `ingest` say why")
    counter = str(run.counter("patterns"))

    def build(pipeline: beam.Pipeline, folder: str) -> None:
        merged = (
            pipeline
            | beam.Create(parts)
            | beam.Reshuffle()
            | beam.FlatMap(_features_of_part, counter=counter)
            | beam.GroupByKey()
            | beam.FlatMap(_release, settings=config.patterns).with_outputs(REJECTS, main=ROWS)
        )
        merged[ROWS] | WriteTable(folder, "patterns", config.parts)
        (
            merged[REJECTS]
            | Count.PerElement()
            | beam.FlatMapTuple(_suppressed)
            | WriteRejects(run.reject_part("patterns"))
        )

    with (
        progress.stage("patterns", total, "sessions", run.counter("patterns")),
        store.replacing(run.path, "patterns", config.parts) as folder,
    ):
        run_pipeline(lambda pipeline: build(pipeline, str(folder)), config.workers, beam_options)


def _features_of_part(part: str, counter: str) -> Iterator[Row]:
    for row in read_rows(part, "sessions"):
        found = patterns.features(redact_session(Session.model_validate(row)))
        yield found.key, found.to_json()
        tick(counter)


def _release(group: tuple[str, Iterable[bytes]], settings: PatternSettings) -> Iterator[Row | Refused]:
    merged = patterns.merge(map(patterns.Features.from_json, group[1]))
    pattern = patterns.release(merged, settings)
    if pattern is not None:
        yield to_row(pattern, "pattern_id")
    elif len(merged.sessions) < settings.min_sessions:
        yield refused(b"too_few_sessions")
    else:
        yield refused(b"too_few_partners")


def _suppressed(reason: bytes, times: int) -> Iterator[bytes]:
    """Rejects told apart by a running number alone: what a suppressed pattern is about is not written."""
    for number in range(times):
        reject = make_reject("patterns", reason.decode(), subject=f"suppressed {number + 1}")
        yield reject.model_dump_json().encode()
