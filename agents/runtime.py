"""The only place that wires engine, sandboxes and swarm. Called by the task stage and, once per worker process, by the
rollout stage.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.engine.base import Engine
from agents.engine.load import load_engine
from agents.sandbox.base import Limits
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.node.client import Nodes
from agents.sandbox.pool import Pool, PoolSettings
from agents.sandbox.signals import allow_open_files
from agents.scaffolds import scaffold
from agents.swarm.blueprint import BlueprintPolicy
from agents.swarm.episode import Ground
from agents.swarm.group import run_group, together
from agents.swarm.policy import EnginePolicy, Policy, ScriptedPolicy
from agents.swarm.roles import CASTS
from agents.swarm.spec import EpisodeSpec, groups_of
from prompts import render
from schemas.episode import Episode
from schemas.errors import ConfigError
from schemas.recipe import RunConfig
from schemas.task import Action, Task


def limits_of(config: RunConfig) -> Limits:
    """The sandbox limits that a configuration asks for."""
    settings = config.sandbox
    return Limits(
        memory_mb=settings.memory_mb,
        disk_mb=settings.disk_mb,
        inodes=settings.inodes,
        processes=settings.processes,
        open_files=settings.open_files,
        cpu_weight=settings.cpu_weight,
        output_bytes=settings.output_kb * 1024,
        lifetime_s=settings.lifetime_s,
    )


def open_pool(config: RunConfig) -> Pool | Nodes:
    """Sandboxes of the configured nodes, or of this host. To be closed by the event loop that uses it."""
    settings = config.sandbox
    if settings.nodes:
        # Replicas must not all ask the same node first.
        return Nodes(settings.nodes, os.environ.get(settings.nodes_token_env), seed=secrets.randbits(31))
    allow_open_files()
    factory = NativeFactory(accept_process_memory_limit=settings.accept_process_memory_limit)
    # A sandbox whose agent waits for its model is idle and in use: its lifetime alone bounds that.
    return Pool(factory, PoolSettings(max_live=settings.max_live, spares=settings.spares, idle_s=settings.lifetime_s))


def _do_nothing(spec: EpisodeSpec) -> ScriptedPolicy:
    """The baseline that submits at once: a task that it passes verifies nothing."""
    text = scaffold(spec.provenance.scaffold).write(
        render("scripted/thought"), Action(tool="submit", arguments_json='{"answer": ""}')
    )
    return ScriptedPolicy({part.name: [text] for part in CASTS[spec.provenance.layout]})


@dataclass
class Runtime:
    """What episodes share inside one process. `engine` is None when no play needs one."""

    engine: Engine | None
    pool: Pool | Nodes
    config: RunConfig

    def policy(self, spec: EpisodeSpec, task: Task, shared: Mapping[str, int]) -> Policy:
        """The policy that the spec names, for one attempt at its episode; `shared` as `agents.swarm.episode` has it."""
        provenance = spec.provenance
        if provenance.policy == "blueprint":
            return BlueprintPolicy(spec, task, scaffold(provenance.scaffold), shared)
        if provenance.policy == "scripted":
            return _do_nothing(spec)
        if self.engine is None:
            raise ConfigError("an engine play needs an engine")
        settings = self.config.engine
        return EnginePolicy(
            self.engine,
            scaffold(provenance.scaffold),
            episode_id=spec.episode_id,
            seed=provenance.seed,
            effort=provenance.effort,
            max_reply_tokens=spec.max_reply_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            constrain_tools=settings.constrain_tools,
        )

    def pool_counts(self) -> dict[str, Any] | None:
        """What the pool of this host has counted so far, as JSON; None for nodes, which count for themselves."""
        if isinstance(self.pool, Nodes):
            return None
        seen = self.pool.metrics()
        return {
            "created": seen.created,
            "peak": seen.peak,
            "reclaimed": seen.reclaimed,
            "refused": dict(seen.refused),
            "deaths": dict(seen.deaths),
            "held_s": {priority: round(seconds, 1) for priority, seconds in seen.held_s.items()},
        }

    async def close(self) -> None:
        """End all sandboxes and free the engine."""
        await self.pool.close()
        if self.engine is not None:
            await self.engine.close()


def open_runtime(config: RunConfig, *, needs_engine: bool) -> Runtime:
    """A runtime on the configured sandboxes; weights are loaded only when episodes will sample."""
    return Runtime(load_engine(config.engine) if needs_engine else None, open_pool(config), config)


class _Caps:
    """Of one policy. A group keeps its place while its repeats take turns, so that few snapshots wait."""

    def __init__(self, most: int) -> None:
        self.groups, self.episodes = asyncio.Semaphore(most), asyncio.Semaphore(most)


async def run_all(
    runtime: Runtime, specs: Iterable[EpisodeSpec], tasks: Mapping[str, Task]
) -> AsyncGenerator[Episode, None]:
    """Episodes as they end, at most `config.rollout.concurrency` in flight per policy, of as many groups at most.

    Policies have caps of their own so that cheap episodes do not queue behind the ones that wait for a model.
    """
    ended: asyncio.Queue[Episode | None] = asyncio.Queue()
    caps: dict[str, _Caps] = {}

    async def group(members: Sequence[EpisodeSpec]) -> None:
        first = members[0]
        caps_of = caps.setdefault(first.provenance.policy, _Caps(runtime.config.rollout.concurrency))
        task = tasks[first.task_id]
        ground = Ground(task, runtime.policy, runtime.pool, limits_of(runtime.config), caps_of.episodes)
        async with caps_of.groups:
            await run_group(members, ground, ended.put_nowait)

    running = asyncio.ensure_future(together(group(members) for members in groups_of(specs)))
    running.add_done_callback(lambda _: ended.put_nowait(None))
    try:
        while (episode := await ended.get()) is not None:
            yield episode
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
