"""Runs the repeats of a subgroup: each alone, or from forks of the rounds that they share. Called by `agents.runtime`.

Shared rounds are played once, by the policy of repeat 0, then the sandbox is sealed and every repeat goes on in a fork
of its files. What the infrastructure loses is begun again from the start in another sandbox, shared rounds included; as
the specs are the same, so is what happens, as far as the policy is deterministic.

A snapshot keeps its files in memory, so subgroups that wait for room for their forks could wait for each other for
ever. Hence the wait is bounded: past it the snapshot is given up, and those who gave one up begin again one by one.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from agents.sandbox.base import Sandbox, Snapshot
from agents.swarm.episode import Resources, RunningEpisode, go_on, open_prepared, record
from agents.swarm.loop import Rounds
from agents.swarm.spec import EpisodeSpec
from schemas.episode import Episode
from schemas.errors import SandboxRefused

ATTEMPTS = 3
"""Times that an episode is begun before it is recorded as undecided. Having found no room for a fork does not count."""
FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 2.0
"""Between asking for a fork again where there was no room; doubles from the first to the last."""
FINAL = ("closed", "limits", "unreachable")
"""Causes of a refusal that waiting does not cure."""

_log = logging.getLogger(__name__)
_Finish = Callable[[EpisodeSpec, RunningEpisode | None], None]
"""Called once for each repeat; None: there was no room for its fork."""


class _NoRoom(Exception):
    """A repeat has waited for its fork for as long as it may."""


async def run_subgroup(specs: Sequence[EpisodeSpec], resources: Resources, ended: Callable[[Episode], None]) -> None:
    """Play specs of one subgroup; `ended` gets each episode once, as it ends."""
    tries: Counter[str] = Counter()
    again: list[EpisodeSpec] = []
    crowded: list[EpisodeSpec] = []

    def finish(spec: EpisodeSpec, running: RunningEpisode | None) -> None:
        if running is None:
            crowded.append(spec)
            return
        tries[spec.episode_id] += 1
        if running.reason == "sandbox_error" and tries[spec.episode_id] < ATTEMPTS:
            again.append(spec)
        else:
            ended(record(spec, resources.task, running, tries[spec.episode_id]))

    await _begin(specs, resources, finish)
    while left := [*again, *crowded]:
        if crowded:
            _log.warning(
                "no room for %d forks of %s in %g s: they begin again", len(crowded), left[0].prefix.episode_id,
                resources.room_s,
            )  # fmt: skip
        turn = resources.crowd if crowded else nullcontext()
        again.clear()
        crowded.clear()
        async with turn:
            await _begin(left, resources, finish)


async def _begin(specs: Sequence[EpisodeSpec], resources: Resources, finish: _Finish) -> None:
    rounds = specs[0].provenance.branch_after
    if not rounds:
        await together(_alone(spec, resources, finish) for spec in specs)
        return
    running, snapshot = await _start(specs[0].prefix, resources, rounds)
    if snapshot is None:  # it has ended, so for all of them
        for spec in specs:
            finish(spec, running.branch())
        return
    try:
        await together(_repeat(spec, running.branch(), snapshot, resources, finish) for spec in specs)
    finally:
        await snapshot.close()


async def _start(spec: EpisodeSpec, resources: Resources, rounds: int | None) -> tuple[RunningEpisode, Snapshot | None]:
    running = RunningEpisode(Rounds(spec, resources.task))
    async with resources.slots:
        policy = resources.policy(spec, resources.task, {})
        return running, await go_on(running, policy, open_prepared(resources, spec), resources.task, rounds)


async def _alone(spec: EpisodeSpec, resources: Resources, finish: _Finish) -> None:
    running, _ = await _start(spec, resources, None)
    finish(spec, running)


async def _repeat(
    spec: EpisodeSpec, running: RunningEpisode, snapshot: Snapshot, resources: Resources, finish: _Finish
) -> None:
    shared = {agent.name: len(agent.turns) for agent in running.rounds.agents.values()}
    async with resources.slots:
        policy = resources.policy(spec, resources.task, shared)
        try:
            await go_on(running, policy, _forked(resources, snapshot, spec), resources.task)
        except _NoRoom:
            finish(spec, None)
            return
    finish(spec, running)


async def _forked(resources: Resources, snapshot: Snapshot, spec: EpisodeSpec) -> Sandbox:
    """A fork, when there is room: a snapshot has one place, whose node says at once that it is full.

    Raises _NoRoom when there was none for `room_s` seconds.
    """
    pause = FIRST_PAUSE_S
    try:
        async with asyncio.timeout(resources.room_s):
            while True:
                try:
                    return await resources.pool.fork(snapshot, spec.priority)
                except SandboxRefused as error:
                    if error.cause in FINAL:
                        raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE_S)
    except TimeoutError as error:
        raise _NoRoom from error


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once. The first error is raised after the others were cancelled and have ended."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
