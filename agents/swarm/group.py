"""Runs the repeats of one group: each alone, or from forks of the rounds that they share. Called by `agents.runtime`.

Shared rounds are played once, by the policy of repeat 0, then the sandbox is sealed and every repeat goes on in a fork
of its files. What the infrastructure loses is begun again from the start in another sandbox, shared rounds included; as
the specs are the same, so is what happens, as far as the policy is deterministic.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from agents.sandbox.base import Sandbox, Snapshot
from agents.swarm.episode import Ground, Play, go_on, open_prepared, record
from agents.swarm.loop import Rounds
from agents.swarm.spec import EpisodeSpec
from schemas.episode import Episode
from schemas.errors import SandboxRefused

ATTEMPTS = 3
"""Times that an episode is begun before it is recorded as undecided."""
FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 2.0
"""Between asking for a fork again where there was no room; doubles from the first to the last."""
FINAL = ("closed", "limits", "unreachable")
"""Causes of a refusal that waiting does not cure."""


async def run_group(
    specs: Sequence[EpisodeSpec], ground: Ground, ended: Callable[[Episode], None], attempt: int = 1
) -> None:
    """Play specs of one group; `ended` gets each episode once, when it has ended."""
    lost: list[EpisodeSpec] = []

    def finish(spec: EpisodeSpec, play: Play) -> None:
        if play.reason == "sandbox_error" and attempt < ATTEMPTS:
            lost.append(spec)
        else:
            ended(record(spec, ground.task, play, attempt))

    await _begin(specs, ground, finish)
    if lost:
        await run_group(lost, ground, ended, attempt + 1)


async def _begin(specs: Sequence[EpisodeSpec], ground: Ground, finish: Callable[[EpisodeSpec, Play], None]) -> None:
    rounds = specs[0].provenance.branch_after
    if not rounds:
        await together(_alone(spec, ground, finish) for spec in specs)
        return
    play, snapshot = await _start(specs[0].prefix, ground, rounds)
    if snapshot is None:  # it has ended, so for all of them
        for spec in specs:
            finish(spec, play.branch())
        return
    try:
        await together(_repeat(spec, play.branch(), snapshot, ground, finish) for spec in specs)
    finally:
        await snapshot.close()


async def _start(spec: EpisodeSpec, ground: Ground, rounds: int | None) -> tuple[Play, Snapshot | None]:
    play = Play(Rounds(spec, ground.task))
    async with ground.slots:
        policy = ground.policy(spec, ground.task, {})
        return play, await go_on(play, policy, open_prepared(ground, spec), ground.task, rounds)


async def _alone(spec: EpisodeSpec, ground: Ground, finish: Callable[[EpisodeSpec, Play], None]) -> None:
    play, _ = await _start(spec, ground, None)
    finish(spec, play)


async def _repeat(
    spec: EpisodeSpec, play: Play, snapshot: Snapshot, ground: Ground, finish: Callable[[EpisodeSpec, Play], None]
) -> None:
    shared = {agent.name: len(agent.turns) for agent in play.rounds.agents.values()}
    async with ground.slots:
        policy = ground.policy(spec, ground.task, shared)
        await go_on(play, policy, _forked(ground, snapshot, spec), ground.task)
    finish(spec, play)


async def _forked(ground: Ground, snapshot: Snapshot, spec: EpisodeSpec) -> Sandbox:
    """A fork, when there is room: a snapshot has one place, whose node says at once that it is full."""
    pause = FIRST_PAUSE_S
    while True:
        try:
            return await ground.pool.fork(snapshot, spec.priority)
        except SandboxRefused as error:
            if error.cause in FINAL:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LAST_PAUSE_S)


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once. The first error is raised after the others were cancelled and have ended."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
