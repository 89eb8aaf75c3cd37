"""The loop: usage → shards → a checkpoint per scaffold → merges → every arm on held-out tasks → a second round.

Called by the command `trajmill loop`. Every step writes one folder or file and is skipped where that is there, so the
same command goes on after a stop, and more seeds can be added later. A checkpoint is made when something needs it that
is missing: one whose outcomes are all there may be deleted. Weights, best merge and best parent are chosen on the
development tasks, whose sentences the test tasks do not share.
"""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil
from pathlib import Path
from typing import Any

from agents.engine.base import ChatTurn
from agents.engine.files import find
from agents.scaffolds import scaffold as known_scaffold
from pipelines import stages, store
from pipelines.files import write_text
from pipelines.folder import RunFolder, locked
from pipelines.merge.methods import METHODS
from pipelines.merge.run import merge
from pipelines.merge.search import search
from pipelines.posttrain import gate
from pipelines.posttrain.arms import NO_SHOTS, Arms, rate, slug
from pipelines.posttrain.checkpoint import read_lineage, starting_point, weight_hashes
from pipelines.posttrain.evaluate import Setting, Trial, evaluate
from pipelines.posttrain.examples import Example, examples_of, shard_hashes
from pipelines.posttrain.heldout import check_contamination, check_sizes, held_out
from pipelines.posttrain.report import BEST_MERGE, BEST_PARENT, MIXTURE, ROUTER, write_report
from pipelines.posttrain.sft import train
from pipelines.progress import Progress
from schemas.errors import ConfigError, StageError
from schemas.ids import derive_seed
from schemas.merge import MergeRecipe
from schemas.posttrain import LoopSettings, MergeArm, RoundTwo, SearchSettings, Start
from schemas.recipe import EngineSettings, PlaySettings, RolloutSettings, RunConfig
from schemas.sample import Sample

_MAY_CHANGE = {"seeds"}
"""Settings that may change between two calls: what is made of a seed depends on no other, but for soups of two."""


def run_loop(source: Path, out: Path, settings: LoopSettings, progress: Progress) -> Path:
    """Everything that the settings ask for and `out` lacks; the report, `out/report.md`, after each seed.

    ConfigError for settings that cannot work, and when `out` was made with others or from other logs or weights;
    StageError when the shards hold a held-out task or too few samples.
    """
    _check(settings)
    with store.locked(out):
        _same(out / "loop.json", settings.model_dump(mode="json", exclude=_MAY_CHANGE), "with other settings")
        run = _ran(source, out / "run", settings.run, progress)
        loop = Loop(out, settings, run, progress)
        origin = {"usage": run.facts()["inputs"], "shards": shard_hashes(run.shards), "base": weight_hashes(loop.base)}
        _same(out / "origin.json", origin, "from others")
        check_contamination(run, loop.arms.sets)
        for seed in settings.seeds:
            loop.round_one(seed)
            write_report(out, settings)
        loop.base_arms()
        loop.soups()
        for seed in settings.seeds:
            write_report(out, settings)
            loop.round_two(seed)
        return write_report(out, settings)


def _check(settings: LoopSettings) -> None:
    """ConfigError for what would only be found after hours."""
    for name in settings.scaffolds:
        known_scaffold(name)
    find(settings.base)
    check_sizes(settings)


def _same(path: Path, asked: dict[str, Any], how: str) -> None:
    if not path.exists():
        write_text(path, json.dumps(asked, indent=1) + "\n")
        return
    before = json.loads(path.read_text("utf-8"))
    if changed := [name for name in asked if before.get(name) != asked[name]]:
        raise ConfigError(f"{path.parent} was made {how} ({', '.join(changed)}); give another folder")


def _ran(source: Path, out: Path, config: RunConfig, progress: Progress) -> RunFolder:
    with locked(out):
        run = stages.open_for(source, out, config, progress)
        stages.run_all(run, progress)
        return run


@dataclass(frozen=True)
class Loop:
    """One loop folder."""

    out: Path
    settings: LoopSettings
    run: RunFolder
    progress: Progress

    @cached_property
    def arms(self) -> Arms:
        """What is known of every arm."""
        return Arms(self.out / "outcomes", self.settings, held_out(self.settings, self.run), self.progress)

    @cached_property
    def base(self) -> Path:
        """The folder that all checkpoints start from."""
        return starting_point(self.settings.base, self.out / "checkpoints" / "start")

    def base_arms(self) -> None:
        """The model that training starts from, without and with demonstrations."""
        tried = [(name, setting) for name in ("test", "transfer") for setting in self.arms.tried]
        shots = {scaffold: self._shots(scaffold) for scaffold in self.settings.scaffolds}
        for arm, given in (("base, zero-shot", NO_SHOTS), (f"base, {self.settings.shots}-shot", shots)):
            self.arms.try_on(arm, 0, lambda: self.base, tried, given)

    def _shots(self, scaffold: str) -> list[ChatTurn]:
        """Demonstrations: kept samples of this scaffold, of different kinds, system messages left out."""
        found: dict[str, Sample] = {}
        for sample in store.read_records(self.run.path, "samples", Sample):
            if sample.scaffold != scaffold or not sample.verdict.keep:
                continue
            best = found.get(sample.kind)
            if best is None or _drawn(sample) < _drawn(best):
                found[sample.kind] = sample
        chosen = sorted(found.values(), key=_drawn)[: self.settings.shots]
        turns = [message for sample in chosen for message in sample.messages if message.role != "system"]
        return [ChatTurn(message.role, message.content) for message in turns]

    def round_one(self, seed: int) -> None:
        """Parents, mixtures, router and merges of a seed, and what each of them can do."""
        arms, scaffolds = self.arms, self.settings.scaffolds
        for scaffold in scaffolds:
            arms.try_all(_parent(scaffold), seed, partial(self.parent, scaffold, seed))
        for arm, times in (("mixture, one's steps", 1), (MIXTURE, len(scaffolds))):
            arms.try_all(arm, seed, partial(self.mixture, arm, times, seed))
        merges = {f"merge {name}": partial(self.merge_of_parents, name, seed) for name in self.settings.merges}
        if self.settings.search:
            merges["merge searched"] = partial(self.searched, self.settings.search, seed)
        for arm, make in merges.items():
            arms.try_all(arm, seed, make)
            self.decide(arm, {scaffold: _parent(scaffold) for scaffold in scaffolds}, seed)
        best_merge = arms.best(list(merges), seed)
        best_parent = arms.best([_parent(scaffold) for scaffold in scaffolds], seed)
        for setting in arms.tried:
            # A router knows the scaffold: each task goes to that scaffold's parent.
            arms.take_over(_parent(setting.scaffold), ROUTER, setting, seed)
            arms.take_over(best_merge, BEST_MERGE, setting, seed)
            arms.take_over(best_parent, BEST_PARENT, setting, seed)

    def parent(self, scaffold: str, seed: int) -> Path:
        """The checkpoint of one scaffold."""
        return self._trained(self.base, self._examples([scaffold], seed), _parent(scaffold), seed)

    def mixture(self, arm: str, times: int, seed: int) -> Path:
        """All scaffolds' examples in one checkpoint, at `times` the steps of one parent."""
        train, examples = self.settings.train, self._examples(self.settings.scaffolds, seed)
        steps = train.steps or ceil(self.settings.samples * train.epochs / train.batch_samples)
        return self._trained(self.base, examples, arm, seed, steps=times * steps)

    def _examples(self, scaffolds: Sequence[str], seed: int) -> list[Example]:
        """The examples of a seed: `samples` of each scaffold."""
        asked, found = self.settings.samples, list[Example]()
        for name in scaffolds:
            examples = self._spread(examples_of(self.run.shards, [name]), seed)
            if len(examples) < asked:
                raise StageError(
                    f"{self.run.shards}: {len(examples)} samples of {name}, {asked} asked for; "
                    "raise run.tasks.per_family or lower samples"
                )
            found += examples[:asked]
        return found

    def _spread(self, examples: Sequence[Example], seed: int) -> list[Example]:
        """In an order drawn by the seed; no wording comes again before all have come, as they are what is scarce."""
        wordings, met = self._wordings, Counter[str]()
        ranked: list[tuple[int, int, Example]] = []
        for example in sorted(examples, key=lambda e: derive_seed("examples", seed, e.sample_id)):
            wording = wordings[example.sample_id]
            ranked.append((met[wording], len(ranked), example))
            met[wording] += 1
        return [example for *_, example in sorted(ranked, key=lambda item: item[:2])]

    @cached_property
    def _wordings(self) -> dict[str, str]:
        """Wording of the task of each sample of the first round."""
        tasks = store.read_table(self.run.path, "tasks", ["task_id", "wording_id"]).to_pylist()
        wording_of = {row["task_id"]: row["wording_id"] for row in tasks}
        samples = store.read_table(self.run.path, "samples", ["sample_id", "task_id"]).to_pylist()
        return {row["sample_id"]: wording_of[row["task_id"]] for row in samples}

    def merge_of_parents(self, name: str, seed: int) -> Path:
        """The parents of a seed, merged in one of the ways asked for."""
        parents = [partial(self.parent, scaffold, seed) for scaffold in self.settings.scaffolds]
        return self._merged(self.settings.merges[name], [make() for make in parents], f"merge {name}", seed)

    def _merged(self, how: MergeArm, models: Sequence[Path], arm: str, seed: int) -> Path:
        out = self.checkpoint(arm, seed)
        return out if out.exists() else merge(self._recipe(how, models, seed), out)

    def _recipe(self, how: MergeArm, models: Sequence[Path], seed: int) -> MergeRecipe:
        method = METHODS[how.method]
        weight = {"weight": 1.0} if "weight" in method.model_parameters else {}
        return MergeRecipe(
            method=how.method,
            base_model=str(self.base) if method.base == "required" else None,
            models=[str(model) for model in models],
            parameters=weight | how.parameters,
            out_dtype=self.settings.train.dtype,
            seed=seed,
        )

    def searched(self, settings: SearchSettings, seed: int) -> Path:
        """The merge with the weights that do best on the development tasks; what was scored is not scored again."""
        out = self.checkpoint("merge searched", seed)
        if out.exists():
            return out
        parents = [self.parent(scaffold, seed) for scaffold in self.settings.scaffolds]
        trial = out.with_name("trial")

        def score(weights: Sequence[float]) -> float:
            shutil.rmtree(trial, ignore_errors=True)
            merge(self._weighted(settings, parents, weights, seed), trial)
            trials = [Trial(self.arms.sets["dev"], setting) for setting in self.arms.free]
            rates = [rate(o) for o in evaluate(trial, trials, self.settings.evaluation, arm="trial", seed=seed)]
            return sum(rates) / len(rates)

        best = search(score, [settings.start] * len(parents), settings, seed, out.with_name("search.jsonl"))
        shutil.rmtree(trial, ignore_errors=True)
        return merge(self._weighted(settings, parents, best, seed), out)

    def _weighted(
        self, settings: SearchSettings, models: Sequence[Path], weights: Sequence[float], seed: int
    ) -> MergeRecipe:
        recipe = self._recipe(MergeArm(method=settings.method, parameters=settings.parameters), models, seed)
        sources = [
            source.model_copy(update={"parameters": {"weight": weight}})
            for source, weight in zip(recipe.models, weights, strict=True)
        ]
        return recipe.model_copy(update={"models": sources})

    def soups(self) -> None:
        """For each scaffold, the mean of the parents of seeds n and n + 1: a merge without a difference in data."""
        for scaffold in self.settings.scaffolds:
            for seed in sorted(set(self.settings.seeds) & {seed - 1 for seed in self.settings.seeds}):
                make = partial(self._soup, scaffold, seed)
                tried = [("test", setting) for setting in self.arms.tried if setting.scaffold == scaffold]
                self.arms.try_on(f"soup {scaffold}", seed, make, tried)

    def _soup(self, scaffold: str, seed: int) -> Path:
        pair = [self.parent(scaffold, seed), self.parent(scaffold, seed + 1)]
        return self._merged(MergeArm(method="linear"), pair, f"soup {scaffold}", seed)

    def decide(self, arm: str, parents: dict[str, str], seed: int) -> None:
        """Record in the merge's lineage, where its weights are still there, whether it may be promoted."""
        folder = self.checkpoint(arm, seed)
        if folder.exists() and "gate" not in (read_lineage(folder) or {}):
            own = {scaffold: Setting(scaffold) for scaffold in parents}
            pairs = {
                scaffold: (self.arms.read(arm, s, "test", seed), self.arms.read(parents[scaffold], s, "test", seed))
                for scaffold, s in own.items()
            }
            gate.record(folder, gate.decide(pairs))

    def round_two(self, seed: int) -> None:
        """From each start: it plays new tasks, its verified samples join, parents are trained from it and merged."""
        settings = self.settings.round_two
        if settings is None:
            return
        for start in settings.starts:
            make = partial(self._second_merge, settings, start, seed)
            parents = {name: f"round 2 from {start}, parent {name}" for name in self.settings.scaffolds}
            arm = f"round 2 from {start}, merge"
            for scaffold, name in parents.items():
                own = partial(self._second_parent, settings, start, scaffold, seed)
                self.arms.try_on(name, seed, own, [("test", Setting(scaffold))])
            self.arms.try_all(arm, seed, make, ("test",))
            self.decide(arm, parents, seed)

    def _second_merge(self, settings: RoundTwo, start: Start, seed: int) -> Path:
        parents = [self._second_parent(settings, start, scaffold, seed) for scaffold in self.settings.scaffolds]
        return self._merged(MergeArm(method="linear"), parents, f"round 2 from {start}, merge", seed)

    def _second_parent(self, settings: RoundTwo, start: Start, scaffold: str, seed: int) -> Path:
        arm = f"round 2 from {start}, parent {scaffold}"
        if (out := self.checkpoint(arm, seed)).exists():
            return out
        folder = self._start(start, seed)
        run = self._second_run(settings, folder, start, seed)
        examples = self._verified(run, scaffold)
        examples += self._spread(examples_of(self.run.shards, [scaffold]), seed)[: settings.samples]
        return self._trained(folder, examples, arm, seed, shards=run.shards)

    def _start(self, name: Start, seed: int) -> Path:
        """The checkpoint that round two starts from."""
        if name == "mixture":
            return self.mixture(MIXTURE, len(self.settings.scaffolds), seed)
        if name == "parent":
            arm = self.arms.best([_parent(scaffold) for scaffold in self.settings.scaffolds], seed)
            return self.parent(arm.removeprefix(_parent("")), seed)
        merges = [f"merge {name}" for name in self.settings.merges]
        arm = self.arms.best(merges + (["merge searched"] if self.settings.search else []), seed)
        if self.settings.search and arm == "merge searched":
            return self.searched(self.settings.search, seed)
        return self.merge_of_parents(arm.removeprefix("merge "), seed)

    def _second_run(self, settings: RoundTwo, model: Path, start: Start, seed: int) -> RunFolder:
        """A run of the whole pipeline on the same usage in which the model plays, with new tasks."""
        asked, tried = self.settings.run, self.settings.evaluation
        play = PlaySettings(
            policy="engine",
            scaffolds=self.settings.scaffolds,
            layouts=["solo"],
            efforts=[tried.effort],
            repeats=settings.repeats,
            max_turns=tried.max_turns,
            max_reply_tokens=tried.max_reply_tokens,
        )
        engine = EngineSettings(
            model=str(model.resolve()),
            temperature=settings.temperature,
            top_p=1.0,
            constrain_tools=False,
            max_batch=tried.concurrency,
            context=tried.context,
            precision=tried.precision,
            device=tried.device,
        )
        config = asked.model_copy(
            update={
                "seed": derive_seed("round two", asked.seed, seed) % 2**31,
                "engine": engine,
                "tasks": asked.tasks.model_copy(update={"per_family": settings.tasks}),
                "rollout": RolloutSettings(plays=[play], concurrency=tried.concurrency),
            }
        )
        place = self.out / "runs" / f"seed-{seed}" / f"from-{start}"
        run = _ran(Path(self.run.facts()["input"]), place, config, self.progress)
        check_contamination(run, self.arms.sets)
        return run

    def _verified(self, run: RunFolder, scaffold: str) -> list[Example]:
        """What the model solved in a run; a model that solved nothing adds nothing."""
        rows = store.read_table(run.path, "samples", ["scaffold", "verdict"]).to_pylist()
        kept = any(row["verdict"]["keep"] and row["scaffold"] == scaffold for row in rows)
        return examples_of(run.shards, [scaffold]) if kept else []

    def _trained(
        self,
        base: Path,
        examples: Sequence[Example],
        arm: str,
        seed: int,
        *,
        steps: int | None = None,
        shards: Path | None = None,
    ) -> Path:
        """One training; `shards`: those of the second round, beside the first's."""
        settings = self.settings.train.model_copy(update={"seed": seed, "steps": steps or self.settings.train.steps})
        out = self.checkpoint(arm, seed)
        if not out.exists():
            self.progress.say(f"seed {seed}: training {arm} on {len(examples)} examples")
        lineage: dict[str, Any] = {"usage": self.run.facts()["inputs"], "shards": shard_hashes(self.run.shards)}
        if shards:
            lineage["round two"] = shard_hashes(shards)
        out.parent.mkdir(parents=True, exist_ok=True)
        return train(base, examples, out, settings, lineage)

    def checkpoint(self, arm: str, seed: int) -> Path:
        """Where the weights of an arm are."""
        return self.out / "checkpoints" / f"seed-{seed}" / slug(arm)


def _parent(scaffold: str) -> str:
    return f"parent {scaffold}"


def _drawn(sample: Sample) -> int:
    return derive_seed("shots", sample.sample_id)
