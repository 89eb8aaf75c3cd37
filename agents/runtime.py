"""The only place that wires engine, sandboxes and swarm. Called by the rollout stage, once per worker process."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass

from agents.engine.base import Engine
from agents.engine.load import load_engine
from agents.sandbox.base import Limits, SandboxFactory
from agents.sandbox.native.host import NativeFactory
from agents.scaffolds import scaffold
from agents.swarm.blueprint import BlueprintPolicy
from agents.swarm.episode import run_episode
from agents.swarm.policy import EnginePolicy, Policy, ScriptedPolicy
from agents.swarm.roles import CASTS
from agents.swarm.spec import EpisodeSpec
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
        processes=settings.processes,
        output_bytes=settings.output_kb * 1024,
    )


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
    factory: SandboxFactory
    config: RunConfig

    def policy(self, spec: EpisodeSpec, task: Task) -> Policy:
        """The policy that the spec names, for one episode."""
        provenance = spec.provenance
        if provenance.policy == "blueprint":
            return BlueprintPolicy(spec, task, scaffold(provenance.scaffold))
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

    async def episode(self, spec: EpisodeSpec, task: Task) -> Episode:
        """Run one episode."""
        return await run_episode(spec, task, self.policy(spec, task), self.factory, limits_of(self.config))

    async def close(self) -> None:
        """Free the engine."""
        if self.engine is not None:
            await self.engine.close()


def open_runtime(config: RunConfig, *, needs_engine: bool) -> Runtime:
    """A runtime on this host's sandboxes; weights are loaded only when episodes will sample."""
    return Runtime(load_engine(config.engine) if needs_engine else None, NativeFactory(), config)


async def run_all(
    runtime: Runtime, specs: Iterable[EpisodeSpec], tasks: Mapping[str, Task]
) -> AsyncGenerator[Episode, None]:
    """Episodes as they end, at most `config.rollout.concurrency` in flight per policy.

    Policies have caps of their own so that cheap episodes do not queue behind the ones that wait for a model.
    """
    caps: dict[str, asyncio.Semaphore] = {}

    async def one(spec: EpisodeSpec) -> Episode:
        async with caps.setdefault(spec.provenance.policy, asyncio.Semaphore(runtime.config.rollout.concurrency)):
            return await runtime.episode(spec, tasks[spec.task_id])

    pending = {asyncio.ensure_future(one(spec)) for spec in specs}
    try:
        for next_done in asyncio.as_completed(pending):
            yield await next_done
    finally:
        for future in pending:
            future.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
