"""usage logs -> sessions: every file read, sessions deduplicated. The stage runner calls `run_ingest`."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import apache_beam as beam

from pipelines import store
from pipelines.folder import RunFolder
from pipelines.progress import Progress, tick
from pipelines.readers import partner_of, read_file
from pipelines.rejects import make_reject
from pipelines.transforms.beam import (
    REJECTS,
    ROWS,
    Refused,
    Row,
    WriteRejects,
    WriteTable,
    refused,
    run_pipeline,
    to_row,
)
from schemas.ids import content_id
from schemas.recipe import RunConfig
from schemas.session import Session


def run_ingest(run: RunFolder, config: RunConfig, progress: Progress, beam_options: Sequence[str] = ()) -> None:
    """Replace the private session store by the sessions of the run's input files."""
    facts = run.facts()
    root = Path(facts["input"])
    base = root if root.is_dir() else root.parent
    files = [str(base / name) for name in sorted(facts["inputs"])]
    counter = str(run.counter("ingest"))

    def build(pipeline: beam.Pipeline, folder: str) -> None:
        read = (
            pipeline
            | beam.Create(files)
            | beam.Reshuffle()
            | beam.ParDo(ReadFile(str(root), config.partner_field, counter)).with_outputs(REJECTS, main=ROWS)
        )
        unique = read[ROWS] | beam.GroupByKey() | beam.FlatMapTuple(_first).with_outputs(REJECTS, main=ROWS)
        unique[ROWS] | WriteTable(folder, "sessions", config.parts)
        (read[REJECTS], unique[REJECTS]) | beam.Flatten() | WriteRejects(run.reject_part("ingest"))

    with (
        progress.stage("ingest", len(files), "files", run.counter("ingest")),
        store.replacing(run.path, "sessions", config.parts) as folder,
    ):
        folder.chmod(0o700)
        run_pipeline(lambda pipeline: build(pipeline, str(folder)), config.workers, beam_options)


class ReadFile(beam.DoFn):
    """A path in; sessions by whose they are and what they say out, and what could not be read under the tag REJECTS."""

    def __init__(self, root: str, partner_field: str | None, counter: str) -> None:
        super().__init__()
        self.root, self.partner_field, self.counter = Path(root), partner_field, counter

    def process(self, element: str) -> Iterator[Row | Refused]:
        """Stream one file."""
        path = Path(element)
        partner = partner_of(path, self.root)
        for found in read_file(path, root=self.root, partner=partner, partner_field=self.partner_field):
            if isinstance(found, Session):
                yield conversation_key(found), found.model_dump_json().encode()
            else:
                yield refused(found)
        tick(self.counter)


def conversation_key(session: Session) -> str:
    """Equal for one partner's sessions with the same messages: a log returned twice supports a pattern once."""
    return content_id("conversation", session.partner, [m.model_dump(mode="json") for m in session.messages])


def _first(_: str, values: Iterable[bytes]) -> Iterator[Row | Refused]:
    sessions = sorted(map(Session.model_validate_json, values), key=lambda s: (s.file, s.session_id))
    first, *others = sessions
    yield to_row(first, "session_id")
    for session in others:
        reject = make_reject(
            "ingest",
            "duplicate",
            file=session.file,
            format=session.format,
            subject=session.session_id,
            detail=f"The same conversation as {first.session_id}.",
        )
        yield refused(reject)
