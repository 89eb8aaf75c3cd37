"""Stage `rollout`: runs the episodes that no journal holds yet, then makes the episodes table from the journals.

An element is a batch of specs with their tasks, so a worker needs nothing but the element and the run's configuration.
Inside a worker all episodes of a batch are coroutines on one loop thread; each is journaled before it counts.

An episode that the engine or the sandboxes failed is data once the rollout is done, but a rollout that goes on plays it
again.
"""

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import apache_beam as beam

from agents.runtime import Runtime, open_runtime, run_all
from agents.swarm.spec import EpisodeSpec, plan_episodes, subgroups_of
from pipelines import journal, pool_counts, store
from pipelines.folder import RunFolder
from pipelines.progress import Progress, tick
from pipelines.transforms.beam import Row, WriteTable, run_pipeline, to_row
from schemas.episode import Episode
from schemas.errors import EngineUnavailable, SandboxError, StageError
from schemas.recipe import RunConfig
from schemas.task import Task

UNDECIDED = {"engine_error": EngineUnavailable, "sandbox_error": SandboxError}
"""Stop reasons that say nothing about the policy, and what a rollout with nothing else raises."""
IN_A_ROW = 16
"""Subgroups of one policy whose episodes end so, one after the other, and end the rollout."""
BATCH = 2048
"""About the most episodes in one element: enough that a batch's tail is a small part of it."""


def run_rollout(run: RunFolder, config: RunConfig, progress: Progress, beam_options: Sequence[str] = ()) -> None:
    """Play what is missing, then write the table. A run killed at any moment loses no episode that ended."""
    tasks = {task.task_id: task for task in store.read_records(run.path, "tasks", Task)}
    if not tasks:
        raise StageError("rollout: no task was validated; the rejects of stage `tasks` say why")
    specs = {spec.episode_id: spec for spec in plan_episodes(list(tasks.values()), config)}
    folder = run.journal / run.input_hash("rollout")
    done = specs.keys() & _decided(folder)
    todo = [spec for episode_id, spec in specs.items() if episode_id not in done]
    counter = run.counter("rollout")
    with progress.stage("rollout", total=len(specs), unit="episodes", counter=counter) as bar:
        bar.skip(len(done))
        needs_engine = any(spec.provenance.policy == "engine" for spec in todo)
        play = PlayEpisodes(config.model_dump_json(), str(folder), str(counter), str(run.pool_counts), needs_engine)

        def rollout(pipeline: beam.Pipeline) -> None:
            _ = pipeline | beam.Create(_batches(todo, tasks, config.workers)) | beam.Reshuffle() | beam.ParDo(play)

        if todo:
            with pool_counts.collecting(run):
                run_pipeline(rollout, config.workers, beam_options)
            _check_decided(folder)
        with store.replacing(run.path, "episodes", config.parts) as out:

            def table(pipeline: beam.Pipeline) -> None:
                _ = (
                    pipeline
                    | beam.Create([str(path) for path in journal.files(folder)])
                    | beam.FlatMap(_rows)
                    | beam.GroupByKey()
                    | beam.MapTuple(_first)
                    | WriteTable(out, "episodes", config.parts)
                )

            run_pipeline(table, config.workers, beam_options)


def _journaled(folder: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for path in journal.files(folder) for line in journal.read_lines(path))


def _decided(folder: Path) -> set[str]:
    return {episode["episode_id"] for episode in _journaled(folder) if episode["stop_reason"] not in UNDECIDED}


def _check_decided(folder: Path) -> None:
    """Raises EngineUnavailable or SandboxError when all episodes of a policy ended so: that says nothing about it."""
    ends: dict[str, dict[str, str | None]] = defaultdict(dict)
    for episode in _journaled(folder):
        ends[episode["policy"]][episode["stop_reason"]] = episode["error"]
    for policy, errors in ends.items():
        if errors.keys() <= UNDECIDED.keys():
            why = "; ".join(f"{reason}: {error}" for reason, error in sorted(errors.items()))
            raise UNDECIDED[min(errors)](f"rollout: no verdict on any episode of policy `{policy}`: {why}")


def _batches(specs: Sequence[EpisodeSpec], tasks: dict[str, Task], workers: int) -> list[bytes]:
    count = max(workers, -(-len(specs) // BATCH))
    subgroups, batches = subgroups_of(specs), []
    for part in (list(chain.from_iterable(subgroups[i::count])) for i in range(count)):
        needed = {spec.task_id: tasks[spec.task_id].model_dump(mode="json") for spec in part}
        batches.append(json.dumps({"specs": [s.model_dump(mode="json") for s in part], "tasks": needed}).encode())
    return batches


def _rows(path: str) -> Iterator[Row]:
    for line in journal.read_lines(Path(path)):
        yield to_row(Episode.model_validate_json(line), "episode_id")


def _first(key: str, values: Any) -> Row:
    # An episode was run twice when engine or sandboxes failed it at first, or a runner retried a batch. Any decided one
    # is the episode.
    return key, min(values, key=lambda value: (json.loads(value)["stop_reason"] in UNDECIDED, value))


class _Worker:
    """What the threads of one process share: an event loop on a thread of its own, and the runtime that lives there."""

    def __init__(self, config: RunConfig, needs_engine: bool) -> None:
        self.runtime: Runtime = open_runtime(config, needs_engine=needs_engine)
        self.name = uuid4().hex
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="rollout", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, list[str]]) -> list[str]:
        """The result of a coroutine on the loop. When this thread is interrupted, it is cancelled and waited for."""
        running = asyncio.run_coroutine_threadsafe(_started(work), self.loop).result()
        try:
            return asyncio.run_coroutine_threadsafe(_ended(running), self.loop).result()
        except BaseException:
            self.loop.call_soon_threadsafe(running.cancel)
            asyncio.run_coroutine_threadsafe(asyncio.wait({running}), self.loop).result()
            raise

    def close(self) -> None:
        """End sandboxes, free the engine and end the thread."""
        try:
            asyncio.run_coroutine_threadsafe(self.runtime.close(), self.loop).result()
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


async def _started(work: Coroutine[Any, Any, list[str]]) -> asyncio.Task[list[str]]:
    return asyncio.get_running_loop().create_task(work)


async def _ended(task: asyncio.Task[list[str]]) -> list[str]:
    return await asyncio.shield(task)


_workers: dict[str, tuple[_Worker, int]] = {}
_workers_lock = threading.Lock()


class PlayEpisodes(beam.DoFn):
    """A batch of specs in, the ids of its episodes out; the episodes themselves go to the journal."""

    def __init__(self, config_json: str, folder: str, counter: str, counts_folder: str, needs_engine: bool) -> None:
        self._config_json, self._folder, self._counter = config_json, folder, counter
        self._counts_folder, self._needs_engine = counts_folder, needs_engine

    def setup(self) -> None:
        """Take part in this process's worker; the first one makes it."""
        with _workers_lock:
            config = RunConfig.model_validate_json(self._config_json)
            worker, users = _workers.get(self._folder) or (_Worker(config, self._needs_engine), 0)
            _workers[self._folder] = (worker, users + 1)
        self._worker = worker

    def teardown(self) -> None:
        """Leave it; the last one closes it."""
        with _workers_lock:
            worker, users = _workers.pop(self._folder)
            if users > 1:
                _workers[self._folder] = (worker, users - 1)
            else:
                worker.close()

    def process(self, element: bytes) -> Iterator[str]:
        """Run the batch to its end."""
        batch = json.loads(element)
        specs = [EpisodeSpec.model_validate(spec) for spec in batch["specs"]]
        tasks = {task_id: Task.model_validate(task) for task_id, task in batch["tasks"].items()}
        yield from self._worker.run(self._play(specs, tasks))

    async def _play(self, specs: list[EpisodeSpec], tasks: dict[str, Task]) -> list[str]:
        writer, ids = journal.JournalWriter(Path(self._folder)), list[str]()
        check = _in_a_row()

        def ended(episode: Episode) -> None:
            writer.append(episode)
            tick(self._counter)
            ids.append(episode.episode_id)
            check(episode)

        try:
            await run_all(self._worker.runtime, specs, tasks, ended)
            return ids
        finally:
            writer.close()
            pool_counts.write(Path(self._counts_folder), self._worker.name, self._worker.runtime.pool_counts())


def _in_a_row() -> Callable[[Episode], None]:
    """A check of each episode as it ends: EngineUnavailable or SandboxError once too many in a row are undecided."""
    undecided: dict[str, set[str]] = defaultdict(set)

    def check(episode: Episode) -> None:
        seen, failure = undecided[episode.policy], UNDECIDED.get(episode.stop_reason)
        if failure is None:
            seen.clear()
            return
        seen.add(episode.subgroup_id)
        if len(seen) >= IN_A_ROW:
            raise failure(f"rollout: no verdict on {IN_A_ROW} subgroups in a row: {episode.error}")

    return check
