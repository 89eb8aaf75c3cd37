"""Which episodes a run holds: each (task, policy, scaffold, layout, effort, repeat), its id known before it runs."""

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import PurePath

from agents.sandbox.base import Priority
from schemas.episode import Layout, Provenance
from schemas.ids import content_id, derive_seed
from schemas.recipe import PlaySettings, RunConfig
from schemas.record import Count, Record
from schemas.task import Task


class EpisodeSpec(Record):
    """One episode to run."""

    task_id: str
    """Task to run."""
    provenance: Provenance
    """Who plays it, how."""
    max_turns: int | None
    """Lowers the task's turn budget; null leaves it."""
    max_reply_tokens: int
    """Sampled tokens per reply at effort 100."""
    prefix_seed: Count
    """Seed of repeat 0, with which the shared rounds are played."""
    priority: Priority = "latency"
    """Of its sandbox. No part of the id: what happens does not depend on it."""

    @property
    def episode_id(self) -> str:
        """Content id of task, provenance and limits."""
        provenance = self.provenance.model_dump(exclude={"branch_after"})
        branch = [self.provenance.branch_after] if self.provenance.branch_after else []
        return content_id("episode", self.task_id, provenance, self.max_turns, self.max_reply_tokens, *branch)

    @property
    def prefix(self) -> "EpisodeSpec":
        """The spec that plays the shared rounds of this one's subgroup: repeat 0, whether it is planned or not."""
        provenance = self.provenance.model_copy(update={"repeat": 0, "seed": self.prefix_seed})
        return self.model_copy(update={"provenance": provenance})


def _spec(task: Task, play: PlaySettings, model: str, seed: int, cell: tuple[str, Layout, int, int]) -> EpisodeSpec:
    scaffold, layout, effort, repeat = cell

    def derived(number: int) -> int:
        return derive_seed(seed, task.task_id, play.policy, scaffold, layout, effort, number)

    provenance = Provenance(
        policy=play.policy,
        model=model if play.policy == "engine" else None,
        scaffold=scaffold,
        layout=layout,
        effort=effort,
        repeat=repeat,
        seed=derived(repeat),
        branch_after=play.branch_after,
    )
    return EpisodeSpec(
        task_id=task.task_id,
        provenance=provenance,
        max_turns=play.max_turns,
        max_reply_tokens=play.max_reply_tokens,
        prefix_seed=derived(0),
        priority=play.priority,
    )


def _play_specs(tasks: Sequence[Task], play: PlaySettings, model: str, seed: int) -> list[EpisodeSpec]:
    # Scaffolds change fastest, so that a small cap still meets every scaffold and layout.
    cells = [(s, layout, effort) for effort, layout, s in product(play.efforts, play.layouts, play.scaffolds)]
    # A blueprint's pass on an evaluation task is known from admission and may reach no shard: nothing to learn.
    pool = [t for t in tasks if t.split == "train"] if play.policy == "blueprint" else list(tasks)
    pool.sort(key=lambda t: derive_seed(seed, "order", t.task_id))
    # Task by task in blocks, each block shifted by one against the cells, so that a cap cuts all cells alike.
    pairs = [(pool[(i + block) % len(pool)], cell) for block in range(len(pool)) for i, cell in enumerate(cells)]
    specs = [_spec(task, play, model, seed, (*cell, r)) for task, cell in pairs for r in range(play.repeats)]
    return specs[: play.max_episodes]


def plan_episodes(tasks: Sequence[Task], config: RunConfig) -> list[EpisodeSpec]:
    """All episodes of the run, the engine's first: they take longest, and what is cheap fills in beside them."""
    if not tasks:
        return []
    plays = sorted(config.rollout.plays, key=lambda p: p.policy != "engine")
    model = PurePath(config.engine.model).name  # a folder's place on this machine says nothing and stays out
    specs = [s for play in plays for s in _play_specs(tasks, play, model, config.seed)]
    return list({s.episode_id: s for s in specs}.values())


def subgroups_of(specs: Iterable[EpisodeSpec]) -> list[list[EpisodeSpec]]:
    """The specs by subgroup (equal but for repeat and seed), in the order in which subgroups and specs come."""
    subgroups: dict[str, list[EpisodeSpec]] = {}
    for spec in specs:
        subgroups.setdefault(spec.prefix.episode_id, []).append(spec)
    return list(subgroups.values())
