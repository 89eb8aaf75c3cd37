"""One episode: its sandbox, its rounds, its verification, its record. Called by `agents.swarm.subgroup`.

A failed rollout is data. What the engine or the infrastructure failed at leaves `passed` None; an agent that ended its
sandbox, or used up its lifetime, has failed. Only a host that cannot make sandboxes at all (SandboxUnsupported) and a
wrong request (EngineRefused) stop the run.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from agents.sandbox.base import Limits, Sandbox, SandboxPool, Snapshot
from agents.scaffolds import scaffold
from agents.swarm.loop import Rounds
from agents.swarm.policy import Policy
from agents.swarm.spec import EpisodeSpec
from agents.swarm.verify import prepare, verify
from schemas.episode import Episode, Repercussion, StopReason, Trajectory
from schemas.errors import (
    ContextFull,
    EngineUnavailable,
    SandboxCrashed,
    SandboxError,
    SandboxExpired,
    SandboxLost,
    SandboxUnsupported,
)
from schemas.ids import canonical_json
from schemas.task import Task

ROOM_S = 60.0
"""A repeat waits so long for room for its fork; past it, its subgroup gives its snapshot up and begins again."""
PolicyMaker = Callable[[EpisodeSpec, Task, Mapping[str, int]], Policy]
"""A fresh policy for a spec; the mapping says how many turns each agent has behind it that all repeats share."""


@dataclass(frozen=True)
class Resources:
    """What the episodes of a task are played with. Subgroups of one policy share `slots` and `crowd`."""

    task: Task
    policy: PolicyMaker
    pool: SandboxPool
    limits: Limits
    slots: asyncio.Semaphore
    """Bounds how many play at once."""
    crowd: asyncio.Lock
    """Held by a subgroup that found no room for its forks, while it begins again."""
    room_s: float = ROOM_S
    """See ROOM_S."""


@dataclass
class RunningEpisode:
    """An episode while it is played, or the rounds that a subgroup shares. `reason` is None until it has ended."""

    rounds: Rounds
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    wall_s: float = 0.0
    played_s: float = 0.0
    """Of the wall time, what counts against the task's budget."""
    reason: StopReason | None = None
    error: str | None = None
    points: dict[str, bool] | None = None
    repercussion: Repercussion | None = None

    def branch(self) -> "RunningEpisode":
        """A copy that goes on by itself."""
        return replace(self, rounds=self.rounds.branch())

    def stop(self, reason: StopReason, error: str | None = None) -> None:
        """It has ended. A sandbox that dies in the verification is the last reason, and the one that counts."""
        self.reason, self.error = reason, error


async def open_prepared(resources: Resources, spec: EpisodeSpec) -> Sandbox:
    """A fresh sandbox with the task's workspace."""
    sandbox = await resources.pool.lease(resources.limits, spec.priority)
    try:
        await prepare(sandbox, resources.task)
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def _untouched(opening: Awaitable[Sandbox]) -> Sandbox:
    """The sandbox. No agent was in it yet: when it crashes or expires, that is no agent's doing."""
    try:
        return await opening
    except (SandboxCrashed, SandboxExpired) as error:
        raise SandboxLost(f"before the agent was in it: {error}") from error


async def go_on(
    running: RunningEpisode, policy: Policy, opening: Awaitable[Sandbox], task: Task, rounds: int | None = None
) -> Snapshot | None:
    """Play in the sandbox that `opening` gives, to the end and its verification: None.

    An episode that has not ended after `rounds` rounds is left there: the snapshot of its sandbox.
    """
    begun, sandbox = time.monotonic(), None
    try:
        sandbox = await _untouched(opening)
        await _play_rounds(running, policy, sandbox, task.budget.episode_s, rounds)
        if running.reason is None:
            return await sandbox.seal()
        if running.reason != "engine_error":
            running.points = await verify(sandbox, task, secrets.token_hex(16))
            running.rounds.event("episode", "verify", points=running.points)
    except SandboxUnsupported:
        raise
    except SandboxCrashed as error:
        running.repercussion = "sandbox_crashed"
        running.stop("sandbox_crashed", str(error))
    except SandboxExpired as error:
        running.stop("sandbox_expired", str(error))
    except SandboxError as error:
        running.stop("sandbox_error", str(error))
    finally:
        policy.end()
        if sandbox is not None:
            await sandbox.close()
        if running.reason is not None:
            running.rounds.event("episode", "stop", reason=running.reason)
        running.wall_s += time.monotonic() - begun
    return None


async def _play_rounds(
    running: RunningEpisode, policy: Policy, sandbox: Sandbox, seconds: float, rounds: int | None
) -> None:
    begun = time.monotonic()
    try:
        async with asyncio.timeout(seconds - running.played_s):
            reason = await running.rounds.run(policy, sandbox, rounds)
            if reason is not None:
                running.stop(reason)
    except TimeoutError:
        running.stop("time_budget")
    except ContextFull:
        running.stop("context_full")
    except EngineUnavailable as error:
        running.stop("engine_error", str(error))
    finally:
        running.played_s += time.monotonic() - begun


def _passed(running: RunningEpisode) -> bool | None:
    if running.reason in ("sandbox_crashed", "sandbox_expired"):
        return False
    return None if running.points is None else all(running.points.values())


def record(spec: EpisodeSpec, task: Task, running: RunningEpisode, attempts: int) -> Episode:
    """The record of an episode that has ended."""
    if running.reason is None:
        raise ValueError(f"{spec.episode_id} has not ended")
    offered = scaffold(spec.provenance.scaffold).offered
    trajectories = [
        Trajectory(
            agent=agent.name,
            role=agent.role,
            messages=agent.messages,
            tools_json=canonical_json(offered(agent.tools)).decode(),
            turns=agent.turns,
        )
        for agent in running.rounds.agents.values()
        if agent.turns
    ]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    sampled = [turn for turn in turns if turn.output_ids is not None]
    provenance = spec.provenance
    return Episode(
        episode_id=spec.episode_id,
        subgroup_id=spec.prefix.episode_id,
        task_id=task.task_id,
        pattern_id=task.pattern_id,
        environment=task.environment,
        kind=task.kind,
        split=task.split,
        policy=provenance.policy,
        model=provenance.model,
        scaffold=provenance.scaffold,
        layout=provenance.layout,
        effort=provenance.effort,
        provenance=provenance,
        trajectories=trajectories,
        events=running.rounds.events,
        stop_reason=running.reason,
        repercussion=running.repercussion,
        error=running.error,
        points_json=None if running.points is None else json.dumps(running.points, sort_keys=True),
        passed=_passed(running),
        turns=len(turns),
        parse_errors=sum(turn.parse_error is not None for turn in turns),
        failed_actions=sum(turn.failed for turn in turns),
        prompt_tokens=sum(len(turn.prompt_ids or ()) for turn in sampled) if sampled else None,
        output_tokens=sum(len(turn.output_ids or ()) for turn in sampled) if sampled else None,
        attempts=attempts,
        started_at=running.started_at,
        wall_s=running.wall_s,
    )
