"""patterns -> tasks: candidates built, tried in sandboxes, admitted or refused. The stage runner calls `run_tasks`.

Each (family, pattern) that shall give n tasks is a unit. Its candidates have numbers 0, 1, 2, ... and seeds derived
from them; the first n that are admitted, by number, are its tasks, so neither concurrency nor order shows in the table.
"""

import asyncio
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import apache_beam as beam

from agents.environments import FAMILIES
from agents.runtime import limits_of, open_pool
from agents.sandbox.base import SandboxPool
from agents.swarm.admit import admit
from pipelines import store
from pipelines.folder import RunFolder
from pipelines.progress import Progress, tick
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
from schemas.errors import ConfigError, StageError
from schemas.ids import content_id, derive_seed
from schemas.pattern import UsagePattern
from schemas.pattern_views import weight_of
from schemas.recipe import RunConfig
from schemas.session import Reject
from schemas.task import Task

TRIES = 4
"""Candidates tried per wanted task, on average over a unit, before it gives up."""
BATCH = 64
"""Most units in one element."""


@dataclass(frozen=True)
class Unit:
    """`wanted` tasks of one family, steered by one pattern."""

    family: str
    pattern: UsagePattern
    wanted: int


def run_tasks(run: RunFolder, config: RunConfig, progress: Progress, beam_options: Sequence[str] = ()) -> None:
    """Replace the table `tasks`. Raises StageError when no pattern was released, or none leads to a task."""
    patterns = list(store.read_records(run.path, "patterns", UsagePattern))
    if not patterns:
        k, partners = config.patterns.min_sessions, config.patterns.min_partners
        raise StageError(
            f"tasks: no pattern was released: none has {k} sessions of {partners} partners; "
            "give more logs, tell the partners apart (a folder each, or partner_field), "
            "or lower patterns.min_sessions and patterns.min_partners in the configuration"
        )
    units = [unit for family in config.tasks.families for unit in share_out(family, patterns, config.tasks.per_family)]
    if not units:
        raise StageError(f"tasks: no released pattern leads to a task of {', '.join(config.tasks.families)}")
    counter = str(run.counter("tasks"))

    def build(pipeline: beam.Pipeline, folder: str) -> None:
        tried = (
            pipeline
            | beam.Create(_batches(units, config.workers))
            | beam.Reshuffle()
            | beam.ParDo(BuildTasks(config.model_dump_json(), counter)).with_outputs(REJECTS, main=ROWS)
        )
        unique = tried[ROWS] | beam.GroupByKey() | beam.FlatMapTuple(_first).with_outputs(REJECTS, main=ROWS)
        unique[ROWS] | WriteTable(folder, "tasks", config.parts)
        (tried[REJECTS], unique[REJECTS]) | beam.Flatten() | WriteRejects(run.reject_part("tasks"))

    with (
        progress.stage("tasks", sum(unit.wanted for unit in units), "tasks", run.counter("tasks")),
        store.replacing(run.path, "tasks", config.parts) as folder,
    ):
        run_pipeline(lambda pipeline: build(pipeline, str(folder)), config.workers, beam_options)


def share_out(family: str, patterns: Sequence[UsagePattern], wanted: int) -> list[Unit]:
    """`wanted` tasks of a family over the patterns that steer to it, by weight (largest remainders, ties by id).

    No pattern that steers to it, no tasks: work that nobody does is not practised.
    """
    if family not in FAMILIES:
        raise ConfigError(f"tasks.families: no family {family!r}; there are {', '.join(sorted(FAMILIES))}")
    weights = {p.pattern_id: weight_of(family, p) for p in patterns}
    total = sum(weights.values())
    if not total:
        return []
    exact = {key: wanted * weight / total for key, weight in weights.items()}
    shares = {key: math.floor(value) for key, value in exact.items()}
    left = wanted - sum(shares.values())
    for key in sorted(exact, key=lambda key: (shares[key] - exact[key], key))[:left]:
        shares[key] += 1
    ordered = sorted(patterns, key=lambda p: p.pattern_id)
    return [Unit(family, p, shares[p.pattern_id]) for p in ordered if shares[p.pattern_id]]


def _batches(units: Sequence[Unit], workers: int) -> list[bytes]:
    rows = [{"family": u.family, "pattern": u.pattern.model_dump(mode="json"), "wanted": u.wanted} for u in units]
    number = max(workers, -(-len(rows) // BATCH))
    return [json.dumps(rows[i::number]).encode() for i in range(number) if rows[i::number]]


class BuildTasks(beam.DoFn):
    """A batch of units in; tasks by what they ask out, and refused candidates under the tag REJECTS."""

    def __init__(self, config_json: str, counter: str) -> None:
        super().__init__()
        self.config_json, self.counter = config_json, counter

    def process(self, element: bytes) -> Iterator[Row | Refused]:
        """Work on all units of the batch at once."""
        config = RunConfig.model_validate_json(self.config_json)
        units = [Unit(u["family"], UsagePattern.model_validate(u["pattern"]), u["wanted"]) for u in json.loads(element)]
        tasks, rejects = asyncio.run(self._all(units, config))
        for task in tasks:
            yield fingerprint(task), task.model_dump_json().encode()
        for reject in rejects:
            yield refused(reject)

    async def _all(self, units: Sequence[Unit], config: RunConfig) -> tuple[list[Task], list[Reject]]:
        # Not left to the pool's queue: so many live sandboxes are good for agents that wait for a model. Admission only
        # runs commands, and too many at once would run out of their wall time for want of a processor.
        pool, slots = open_pool(config), asyncio.Semaphore(2 * len(os.sched_getaffinity(0)))
        try:
            found = await asyncio.gather(*(fill(unit, config, pool, slots, self.counter) for unit in units))
        finally:
            await pool.close()
        return [t for tasks, _ in found for t in tasks], [r for _, rejects in found for r in rejects]


def fingerprint(task: Task) -> str:
    """Equal for tasks that ask the same of the same files."""
    return content_id("asks", task.environment, task.instruction, [f.model_dump() for f in task.workspace])


async def fill(
    unit: Unit, config: RunConfig, pool: SandboxPool, slots: asyncio.Semaphore, counter: str | None = None
) -> tuple[list[Task], list[Reject]]:
    """The tasks of a unit and its refused candidates. Each wave tries as many candidates as tasks are missing."""
    build, limits = FAMILIES[unit.family], limits_of(config)
    tasks: list[Task] = []
    rejects: list[Reject] = []
    seen: set[str] = set()
    numbers = count()

    async def tried(task: Task) -> list[Reject]:
        async with slots:
            found = await admit(task, pool, limits)
        return [make_reject("tasks", r.reason, subject=task.task_id, detail=r.detail) for r in found]

    for _ in range(TRIES):
        wave = []
        for number in (next(numbers) for _ in range(unit.wanted - len(tasks))):
            seed = derive_seed(config.seed, unit.pattern.pattern_id, unit.family, number)
            task = build(unit.pattern, seed, config.tasks.eval_share)
            if fingerprint(task) in seen:
                rejects.append(make_reject("tasks", "duplicate", subject=task.task_id))
            else:
                seen.add(fingerprint(task))
                wave.append(task)
        for task, found in zip(wave, await asyncio.gather(*map(tried, wave)), strict=True):
            rejects += found
            if not found:
                tasks.append(task)
                tick(counter)
        if len(tasks) == unit.wanted:
            return tasks, rejects
    missing = f"{len(tasks)} of {unit.wanted} tasks after {TRIES} rounds"
    rejects.append(make_reject("tasks", "gave_up", subject=f"{unit.family}/{unit.pattern.pattern_id}", detail=missing))
    return tasks, rejects


def _first(_: str, values: Iterable[bytes]) -> Iterator[Row | Refused]:
    tasks = sorted((Task.model_validate_json(value) for value in values), key=lambda task: task.task_id)
    yield to_row(tasks[0], "task_id")
    for task in tasks[1:]:
        reject = make_reject("tasks", "duplicate", subject=task.task_id)
        yield refused(reject)
