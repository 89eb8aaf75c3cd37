"""A checkpoint on held-out tasks: real sandboxes, one scaffold at a time, greedy or sampled. Called by the loop."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agents.engine.base import ChatTurn, Engine, GenerateRequest, GenerateResult
from agents.engine.load import load_engine
from agents.runtime import Runtime, open_pool, run_all
from agents.sandbox.node.client import Nodes
from agents.sandbox.pool import Pool
from agents.scaffolds import scaffold
from agents.swarm.spec import plan_episodes
from pipelines import store
from pipelines.files import write_text
from pipelines.posttrain.resampling import Row, pass_at_k_over, row
from schemas.episode import Episode
from schemas.errors import ConfigError, EngineUnavailable, SandboxError
from schemas.evaluation import Outcome
from schemas.posttrain import EvaluationSettings
from schemas.recipe import EngineSettings, PlaySettings, RolloutSettings, RunConfig
from schemas.task import Task

log = logging.getLogger(__name__)

_TRIES = 3


@dataclass(frozen=True)
class Setting:
    """What a checkpoint is tried through: a scaffold, free or held to its tools' schemas."""

    scaffold: str
    constrained: bool = False

    def __str__(self) -> str:
        return f"{self.scaffold}, constrained" if self.constrained else self.scaffold


def settings_of(scaffolds: Sequence[str]) -> list[Setting]:
    """Each scaffold free, and constrained where it has schemas."""
    return [
        Setting(name, constrained)
        for name in scaffolds
        for constrained in (False, True)
        if not constrained or scaffold(name).CALL_TAGS
    ]


@dataclass(frozen=True)
class Trial:
    """Tasks of the evaluation split and what they are tried through; `shots` are put behind the system message."""

    tasks: Sequence[Task]
    setting: Setting
    shots: Sequence[ChatTurn] = ()


def evaluate(
    model: str | Path, trials: Sequence[Trial], settings: EvaluationSettings, *, arm: str, seed: int = 0
) -> Iterator[list[Outcome]]:
    """For each trial an Outcome per task and repeat, in the order of their ids; the model is loaded once.

    `model`: a checkpoint folder, `smollm2` or a .gguf file. `arm` and `seed` (of its training) only name it. An attempt
    that the engine or the sandboxes failed is made again, three times in all; then EngineUnavailable or SandboxError,
    as it says nothing about the model. ConfigError for a task that stands twice or is of the training split.
    """
    for trial in trials:
        _check(trial)
    if not trials:
        return
    configs = [_config(str(model), trial.setting, settings) for trial in trials]
    with asyncio.Runner() as runner:
        engine, pool = runner.run(_opened(configs[0]))
        try:
            for trial, config in zip(trials, configs, strict=True):
                runtime = Runtime(WithShots(engine, trial.shots) if trial.shots else engine, pool, config)
                episodes = runner.run(_played(runtime, {task.task_id: task for task in trial.tasks}))
                yield _outcomes(episodes, trial, arm, seed)
        finally:
            runner.run(Runtime(engine, pool, configs[0]).close())


def _check(trial: Trial) -> None:
    tasks, name = trial.tasks, trial.setting.scaffold
    if len({task.task_id for task in tasks}) != len(tasks):
        raise ConfigError("evaluation: a task stands twice in the set")
    if seen := [task.task_id for task in tasks if task.split != "eval"]:
        raise ConfigError(f"evaluation: {len(seen)} tasks are of the training split, e.g. {seen[0]}")
    if trial.setting.constrained and not scaffold(name).CALL_TAGS:
        raise ConfigError(f"evaluation: scaffold {name!r} has no schemas to hold decoding to")


def _config(model: str, setting: Setting, settings: EvaluationSettings) -> RunConfig:
    play = PlaySettings(
        policy="engine",
        scaffolds=[setting.scaffold],
        layouts=["solo"],
        efforts=[settings.effort],
        repeats=settings.repeats,
        max_turns=settings.max_turns,
        max_reply_tokens=settings.max_reply_tokens,
    )
    engine = EngineSettings(
        model=model,
        temperature=settings.temperature,
        top_p=settings.top_p,
        constrain_tools=setting.constrained,
        max_batch=settings.concurrency,
        context=settings.context,
        precision=settings.precision,
        device=settings.device,
    )
    rollout = RolloutSettings(plays=[play], concurrency=settings.concurrency)
    return RunConfig(engine=engine, rollout=rollout, sandbox=settings.sandbox)


async def _opened(config: RunConfig) -> tuple[Engine, Pool | Nodes]:
    return load_engine(config.engine), open_pool(config)


async def _played(runtime: Runtime, tasks: Mapping[str, Task]) -> list[Episode]:
    decided: list[Episode] = []
    todo = plan_episodes(list(tasks.values()), runtime.config)
    for _ in range(_TRIES):
        ended: list[Episode] = []
        await run_all(runtime, todo, tasks, ended.append)
        decided += [episode for episode in ended if episode.passed is not None]
        lost = {episode.episode_id: episode for episode in ended if episode.passed is None}
        if not lost:
            return decided
        todo = [spec for spec in todo if spec.episode_id in lost]
        last = next(iter(lost.values()))
        log.warning("%d attempts without a verdict, e.g. %s", len(lost), last.error)
    failure = EngineUnavailable if last.stop_reason == "engine_error" else SandboxError
    raise failure(f"evaluation: no verdict on {len(lost)} attempts after {_TRIES} tries, e.g. {last.error}")


def _outcomes(episodes: Sequence[Episode], trial: Trial, arm: str, seed: int) -> list[Outcome]:
    wordings = {task.task_id: task.wording_id for task in trial.tasks}
    return [
        Outcome(
            arm=arm,
            scaffold=trial.setting.scaffold,
            constrained=trial.setting.constrained,
            task_id=episode.task_id,
            wording_id=wordings[episode.task_id],
            seed=seed,
            repeat=episode.provenance.repeat,
            passed=bool(episode.passed),
            tokens=episode.output_tokens or 0,
        )
        for episode in sorted(episodes, key=lambda e: (e.task_id, e.provenance.repeat))
    ]


def evaluate_run(
    model: str, run: Path, scaffolds: Sequence[str], settings: EvaluationSettings, out: Path, limit: int | None = None
) -> Iterator[str]:
    """A checkpoint on the evaluation tasks of a run folder: a line for each setting, and all outcomes in `out`.

    At most `limit` tasks, each wording once before any comes again. ConfigError when the run has no evaluation task, or
    `out` is there.
    """
    if out.exists():
        raise ConfigError(f"{out} exists; give another file")
    tasks = spread_wordings(t for t in store.read_records(run, "tasks", Task) if t.split == "eval")[:limit]
    if not tasks:
        raise ConfigError(f"{run}: no evaluation task; tasks.eval_share of its configuration says how many there are")
    out.parent.mkdir(parents=True, exist_ok=True)
    found: list[Outcome] = []
    trials = [Trial(tasks, setting) for setting in settings_of(scaffolds)]
    for trial, outcomes in zip(trials, evaluate(model, trials, settings, arm=Path(model).name), strict=True):
        found += outcomes
        write_text(out, "".join(outcome.model_dump_json() + "\n" for outcome in found))
        yield f"{trial.setting}: {_in_words(row(outcomes))}{_at_k(outcomes, settings.repeats)}"


def spread_wordings(tasks: Iterable[Task]) -> list[Task]:
    """Tasks in an order in which no wording comes again before all have come; within that by task id."""
    met: Counter[str] = Counter()
    ranked: list[tuple[int, str, Task]] = []
    for task in sorted(tasks, key=lambda t: t.task_id):
        ranked.append((met[task.wording_id], task.task_id, task))
        met[task.wording_id] += 1
    return [task for *_, task in sorted(ranked, key=lambda item: item[:2])]


def _in_words(found: Row) -> str:
    cost = "" if found.tokens_per_solved is None else f", {found.tokens_per_solved:.0f} tokens per solved task"
    effect = "" if found.design_effect is None else f", design effect {found.design_effect:.1f}"
    interval = f"[{found.low:.0%}, {found.high:.0%}]"
    return f"{found.rate:.0%} of {found.tasks} tasks {interval}{cost}{effect}"


def _at_k(outcomes: Sequence[Outcome], repeats: int) -> str:
    if repeats == 1:
        return ""
    value, low, high = pass_at_k_over(outcomes, repeats)
    return f", pass@{repeats} {value:.0%} [{low:.0%}, {high:.0%}]"


class WithShots:
    """An engine that reads demonstrations between the system message and the conversation."""

    def __init__(self, engine: Engine, shots: Sequence[ChatTurn]) -> None:
        self._engine, self._shots = engine, tuple(shots)
        self.model, self.context = engine.model, engine.context

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """As the engine's, for the longer conversation."""
        at = 1 if request.messages[:1] and request.messages[0].role == "system" else 0
        messages = (*request.messages[:at], *self._shots, *request.messages[at:])
        return await self._engine.generate(replace(request, messages=messages))

    def release(self, conversation: str) -> None:
        """As the engine's."""
        self._engine.release(conversation)

    async def close(self) -> None:
        """As the engine's."""
        await self._engine.close()
