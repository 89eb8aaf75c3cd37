"""Runs one episode from spec to record: sandbox, rounds, verification. Called by `agents.runtime`.

A failed rollout is data: engine and sandbox failures end in the record with `passed` None. Only a host that cannot make
sandboxes at all (SandboxUnsupported) and a wrong request (EngineRefused) stop the run.
"""

import asyncio
import json
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from agents.sandbox.base import Limits, SandboxFactory
from agents.scaffolds import scaffold
from agents.swarm.loop import Rounds
from agents.swarm.policy import Policy
from agents.swarm.spec import EpisodeSpec
from agents.swarm.verify import prepare, verify
from schemas.episode import Episode, StopReason, Trajectory
from schemas.errors import ContextFull, EngineUnavailable, SandboxDied
from schemas.ids import canonical_json
from schemas.task import Task


@dataclass(frozen=True)
class _Ending:
    reason: StopReason
    error: str | None
    points: dict[str, bool] | None
    started_at: datetime
    wall_s: float


async def run_episode(
    spec: EpisodeSpec, task: Task, policy: Policy, factory: SandboxFactory, limits: Limits
) -> Episode:
    """Play `spec` on `task` in a fresh sandbox and verify what is left there."""
    began, started_at = time.monotonic(), datetime.now(UTC)
    error, points = None, None
    sandbox = await factory.open(limits)
    rounds = Rounds(spec, task, policy, sandbox)
    rounds.event("episode", "start")
    try:
        await prepare(sandbox, task)
        reason, error = await _play(rounds, task.budget.episode_s)
        rounds.event("episode", "stop", reason=reason)
        if reason != "engine_error":
            points = await verify(sandbox, task, secrets.token_hex(16))
            rounds.event("episode", "verify", points=points)
    except SandboxDied as exc:
        reason, error = "sandbox_error", str(exc)
        rounds.event("episode", "stop", reason=reason)
    finally:
        policy.end()
        await sandbox.close()
    return _record(spec, task, rounds, _Ending(reason, error, points, started_at, time.monotonic() - began))


async def _play(rounds: Rounds, seconds: float) -> tuple[StopReason, str | None]:
    try:
        async with asyncio.timeout(seconds):
            return await rounds.run(), None
    except TimeoutError:
        return "time_budget", None
    except ContextFull:
        return "context_full", None
    except EngineUnavailable as exc:
        return "engine_error", str(exc)


def _record(spec: EpisodeSpec, task: Task, rounds: Rounds, ending: _Ending) -> Episode:
    offered = scaffold(spec.provenance.scaffold).offered
    trajectories = [
        Trajectory(
            agent=agent.name,
            role=agent.role,
            messages=agent.messages,
            tools_json=canonical_json(offered(agent.tools)).decode(),
            turns=agent.turns,
        )
        for agent in rounds.agents.values()
        if agent.turns
    ]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    sampled = [turn for turn in turns if turn.output_ids is not None]
    provenance = spec.provenance
    return Episode(
        episode_id=spec.episode_id,
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
        events=rounds.events,
        stop_reason=ending.reason,
        error=ending.error,
        points_json=None if ending.points is None else json.dumps(ending.points, sort_keys=True),
        passed=None if ending.points is None else all(ending.points.values()),
        turns=len(turns),
        parse_errors=sum(turn.parse_error is not None for turn in turns),
        failed_actions=sum(turn.failed for turn in turns),
        prompt_tokens=sum(len(turn.prompt_ids or ()) for turn in sampled) if sampled else None,
        output_tokens=sum(len(turn.output_ids or ()) for turn in sampled) if sampled else None,
        started_at=ending.started_at,
        wall_s=ending.wall_s,
    )
