"""What every stage needs of Beam: a pipeline on a chosen runner, and tables written part by part.

Shuffled elements are (key, JSON bytes) pairs: a pickled pydantic model costs 15 times as much. Rows are gathered by
part number and written sorted, so that neither the number of workers nor their order shows in a table.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.pvalue import PCollection, TaggedOutput
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from pipelines import store
from pipelines.rejects import write_rejects
from schemas.errors import ConfigError, TrajmillError
from schemas.ids import shard_of
from schemas.record import Record
from schemas.session import Reject
from schemas.tables import TABLES

Row = tuple[str, bytes]
ROWS: Final = "rows"
REJECTS: Final = "rejects"
Refused: TypeAlias = TaggedOutput[Literal["rejects"], bytes]

_REFUSED = {
    "daskrunner": "it silently drops rows that a stage emits at the end of a bundle, tagged outputs and Parquet files",
    "directrunner": "it downloads another runner first; leave --runner out for the embedded one",
}


def run_pipeline(build: Callable[[beam.Pipeline], None], workers: int, options: Sequence[str] = ()) -> None:
    """Build a pipeline and run it to its end. `options`: Beam's own command line, `--runner=...` among it.

    Without a runner it is the embedded FnApiRunner with `workers` threads. Its in-memory mode opens no port (the
    multi-threading mode would serve gRPC on all interfaces). Raises ConfigError for a runner that loses data, and the
    stage's own error when a worker raised one.
    """
    parsed = PipelineOptions([*options])
    name = (parsed.view_as(StandardOptions).runner or "FnApiRunner").rpartition(".")[2]
    if name.lower() in _REFUSED:
        raise ConfigError(f"runner {name} is refused: {_REFUSED[name.lower()]}")
    runner: Any = name
    if name == "FnApiRunner":
        flags = ["--direct_running_mode=in_memory", f"--direct_num_workers={workers}"]
        parsed, runner = PipelineOptions([*options, *flags]), FnApiRunner()
    # Beam logs the traceback of every error that it also raises, and warns that threads in memory are no workers.
    log = logging.getLogger("apache_beam.runners")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        pipeline = _pipeline(runner, parsed)
        build(pipeline)
        pipeline.run().wait_until_finish()
    except (TrajmillError, RuntimeError) as error:
        # Beam makes a RuntimeError of one whose first argument is no text (an errno), and of the Ctrl-C that came while
        # a step ran in the main thread.
        chain = _chain(error)
        if any(isinstance(e, KeyboardInterrupt) for e in chain):
            raise KeyboardInterrupt from None
        own = next((e for e in reversed(chain) if isinstance(e, TrajmillError)), None)
        if own is None:
            raise
        raise own from None
    finally:
        log.setLevel(level)


def _chain(error: BaseException) -> list[BaseException]:
    """The error and those it was raised from, the first one last; Beam re-raises an error once for each step."""
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    return chain


def _pipeline(runner: Any, options: PipelineOptions) -> beam.Pipeline:
    try:
        return beam.Pipeline(runner=runner, options=options)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"--beam: {error}") from error


def to_row(record: Record, key: str) -> Row:
    """A record as what is shuffled: its key and its JSON."""
    return getattr(record, key), record.model_dump_json().encode()


def refused(reject: Reject | bytes) -> Refused:
    """What a step yields beside its rows, under the tag REJECTS."""
    data = reject if isinstance(reject, bytes) else reject.model_dump_json().encode()
    tagged: Refused = TaggedOutput(REJECTS, data)
    return tagged


class WriteTable(beam.PTransform):
    """(key, JSON) rows into the parts of a table in `folder`; gives the parts' paths.

    A key that comes twice is an error, unless the stage has made keys unique before.
    """

    def __init__(self, folder: Path | str, name: str, parts: int) -> None:
        super().__init__()
        self.folder, self.name, self.parts = str(folder), name, parts

    def expand(self, pcoll: PCollection) -> PCollection:
        """Gather rows by part number and write each part."""
        written: PCollection = (
            pcoll
            | beam.Map(_by_part, parts=self.parts)
            | beam.GroupByKey()
            | beam.Map(_write_part, folder=self.folder, name=self.name, parts=self.parts)
        )
        return written


def _by_part(row: Row, parts: int) -> tuple[int, Row]:
    return shard_of(row[0], parts), row


def _write_part(group: tuple[int, Iterable[Row]], folder: str, name: str, parts: int) -> str:
    part, rows = group
    record = TABLES[name].record
    records = [record.model_validate_json(value) for _, value in rows]
    return str(store.write_part(Path(folder), name, part, parts, records))


class WriteRejects(beam.PTransform):
    """Rejects of one stage (JSON bytes) into its part of the rejects table; equal ones count once.

    The part is written even when nothing was refused, so that rejects of an earlier run do not stay.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = str(path)

    def expand(self, pcoll: PCollection) -> PCollection:
        """Gather all and write them sorted by id."""
        start = pcoll.pipeline | beam.Create([("", b"")])
        written: PCollection = (
            (pcoll | beam.Map(_unkeyed), start)
            | beam.Flatten()
            | beam.GroupByKey()
            | beam.Map(_write_rejects, path=self.path)
        )
        return written


def _unkeyed(value: bytes) -> tuple[str, bytes]:
    return "", value


def _write_rejects(group: tuple[str, Iterable[bytes]], path: str) -> str:
    write_rejects(Path(path), (Reject.model_validate_json(value) for value in group[1] if value))
    return path


def read_rows(part: str, name: str, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of one part as plain dicts, streamed."""
    for batch in store.read_batches([Path(part)], name, columns):
        yield from batch.to_pylist()
