"""The only place that wires engine, sandboxes and swarm. Called by the task stage and, once per worker process, by the
rollout stage.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
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
from agents.swarm.episode import Resources
from agents.swarm.policy import EnginePolicy, Policy, ScriptedPolicy
from agents.swarm.roles import CASTS
from agents.swarm.spec import EpisodeSpec, subgroups_of
from agents.swarm.subgroup import run_subgroup, together
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
    allow_open_files()  # each sandbox here, and each command on a node, takes at least one
    if settings.nodes:
        # Replicas must not all ask the same node first.
        return Nodes(settings.nodes, os.environ.get(settings.nodes_token_env), seed=secrets.randbits(31))
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
        try:
            await self.pool.close()
        finally:
            if self.engine is not None:
                await self.engine.close()


def open_runtime(config: RunConfig, *, needs_engine: bool) -> Runtime:
    """A runtime on the configured sandboxes; weights are loaded only when episodes will sample."""
    return Runtime(load_engine(config.engine) if needs_engine else None, open_pool(config), config)


class _Caps:
    """Of one policy: how many episodes play at once, and how many branched subgroups, each of which keeps a snapshot.

    A branched subgroup takes a place for each of its repeats, so their number times their repeats is bounded too.
    """

    def __init__(self, most: int) -> None:
        self.slots, self.crowd = asyncio.Semaphore(most), asyncio.Lock()
        self._most, self._places, self._turn = most, asyncio.Semaphore(most), asyncio.Lock()

    @asynccontextmanager
    async def places(self, repeats: int) -> AsyncIterator[None]:
        """Around a branched subgroup; one with more repeats than there are places plays alone."""
        taken = min(repeats, self._most)
        async with self._turn:  # two that each hold some places and wait for more would wait for ever
            for _ in range(taken):
                await self._places.acquire()
        try:
            yield
        finally:
            for _ in range(taken):
                self._places.release()


async def run_all(
    runtime: Runtime, specs: Iterable[EpisodeSpec], tasks: Mapping[str, Task], ended: Callable[[Episode], None]
) -> None:
    """Play all; `ended` gets each episode at once when it has ended, and may raise to stop the others.

    At most `config.rollout.concurrency` are in flight per policy. Policies have caps of their own so that cheap
    episodes do not queue behind the ones that wait for a model.
    """
    caps: dict[str, _Caps] = {}

    async def play(members: Sequence[EpisodeSpec]) -> None:
        origin, task = members[0].provenance, tasks[members[0].task_id]
        own = caps.setdefault(origin.policy, _Caps(runtime.config.rollout.concurrency))
        limits = limits_of(runtime.config)
        resources = Resources(task, runtime.policy, runtime.pool, limits, own.slots, own.crowd)
        async with own.places(len(members)) if origin.branch_after else nullcontext():
            await run_subgroup(members, resources, ended)

    await together(play(members) for members in subgroups_of(specs))
