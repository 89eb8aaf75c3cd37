"""The loop: usage → shards → a checkpoint per scaffold → merges → every arm on held-out tasks → a second round.

Called by the command `trajmill loop`. Every step writes one folder or file and is skipped where that is there, so the
same command goes on after a stop; more seeds can be added later. Weights, best merge and best parent are chosen on the
development tasks, whose wordings the test tasks do not share.
"""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agents.engine.base import ChatTurn
from agents.environments import errands, lookups
from pipelines import stages, store
from pipelines.files import write_text
from pipelines.folder import RunFolder, locked
from pipelines.merge.methods import METHODS
from pipelines.merge.run import merge
from pipelines.merge.search import search
from pipelines.posttrain import gate
from pipelines.posttrain.checkpoint import starting_point
from pipelines.posttrain.contamination import contamination
from pipelines.posttrain.evaluate import Setting, Trial, evaluate, settings_of
from pipelines.posttrain.examples import Example, examples_of, shard_hashes
from pipelines.posttrain.report import ROUTER, write_report
from pipelines.posttrain.sft import train
from pipelines.progress import Progress
from schemas.errors import ConfigError, StageError
from schemas.evaluation import Outcome
from schemas.ids import derive_seed
from schemas.merge import MergeRecipe
from schemas.pattern import UsagePattern
from schemas.posttrain import LoopSettings, MergeArm, RoundTwo, SearchSettings
from schemas.recipe import EngineSettings, PlaySettings, RolloutSettings, RunConfig
from schemas.sample import Sample
from schemas.task import Task

_CHOSEN_ANY_TIME = {"seeds"}
"""Settings that may change between two calls: each seed's arms depend on no other's, but for soups."""


def run_loop(source: Path, out: Path, settings: LoopSettings, progress: Progress) -> Path:
    """Everything that the settings ask for and `out` lacks; the report, `out/report.md`.

    ConfigError when `out` was made with other settings; StageError when the shards hold a held-out task.
    """
    with store.locked(out):
        _same_settings(out, settings)
        run = stages.open_for(source, out / "run", settings.run, progress)
        with locked(run.path):
            stages.run_all(run, progress)
        loop = Loop(out, settings, run, progress)
        loop.check_contamination(run)
        for seed in settings.seeds:
            loop.round_one(seed)
        loop.base_arms()
        loop.soups()
        for seed in settings.seeds:
            loop.round_two(seed)
        return write_report(out, settings)


def _same_settings(out: Path, settings: LoopSettings) -> None:
    path = out / "loop.json"
    asked = settings.model_dump(mode="json")
    if path.exists():
        before = json.loads(path.read_text("utf-8"))
        changed = [name for name in asked if name not in _CHOSEN_ANY_TIME and before.get(name) != asked[name]]
        if changed:
            raise ConfigError(f"{out} was made with other settings ({', '.join(changed)}); give another folder")
    write_text(path, json.dumps(asked, indent=1) + "\n")


@dataclass(frozen=True)
class Loop:
    """One loop folder. Methods do what is missing and give back where it is."""

    out: Path
    settings: LoopSettings
    run: RunFolder
    progress: Progress

    @cached_property
    def base(self) -> Path:
        """The folder that all checkpoints start from."""
        return starting_point(self.settings.base, self.out / "checkpoints" / "start")

    @cached_property
    def tried(self) -> list[Setting]:
        """What every arm is tried through."""
        return settings_of(self.settings.scaffolds)

    @cached_property
    def tasks(self) -> dict[str, list[Task]]:
        """Held-out tasks by set: test, dev and transfer."""
        pattern = min(store.read_records(self.run.path, "patterns", UsagePattern), key=lambda p: p.pattern_id)
        return {
            "test": errands.heldout(self.settings.test_tasks, "test", 0, pattern),
            "dev": errands.heldout(self.settings.dev_tasks, "dev", 0, pattern),
            "transfer": lookups.heldout(self.settings.transfer_tasks, 0, pattern),
        }

    def check_contamination(self, run: RunFolder) -> None:
        """Write what a run's shards share with the held-out tasks; StageError when that is more than values."""
        trained = list(store.read_records(run.path, "tasks", Task))
        found = {
            name: contamination(run.shards, tasks, _structure_of, _values_of, trained)
            for name, tasks in self.tasks.items()
            if tasks
        }
        path = run.path / "contamination.json"
        write_text(path, json.dumps({name: asdict(each) for name, each in found.items()}, indent=1) + "\n")
        if dirty := [name for name, each in found.items() if not each.clean]:
            raise StageError(f"{run.shards}: holds tasks of the sets {', '.join(dirty)}; {path} says which")

    def base_arms(self) -> None:
        """The model that training starts from, without and with demonstrations."""
        tried = [(name, setting) for name in ("test", "transfer") for setting in self.tried]
        shots = {scaffold: self.shots(scaffold) for scaffold in self.settings.scaffolds}
        self.try_arm(self.base, "base, zero-shot", 0, tried)
        self.try_arm(self.base, f"base, {self.settings.shots}-shot", 0, tried, shots)

    def shots(self, scaffold: str) -> list[ChatTurn]:
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
        """Parents, mixtures, merges of a seed, and what each of them can do."""
        parents = self.parents(seed)
        for arm, folder in zip(self.parent_arms, parents.values(), strict=True):
            self.try_all(folder, arm, seed)
        for arm, folder in self.mixtures(seed).items():
            self.try_all(folder, arm, seed)
        self.route(seed)
        merges = self.merges(seed)
        for arm, folder in merges.items():
            self.try_all(folder, arm, seed)
            self.decide(folder, arm, seed)
        best = self.best(list(merges), seed)
        for setting in self.tried:
            self.take_over(best, BEST, setting, seed)

    @property
    def parent_arms(self) -> list[str]:
        """Names of the parents, in the order of the scaffolds."""
        return [f"parent {scaffold}" for scaffold in self.settings.scaffolds]

    def parents(self, seed: int) -> dict[str, Path]:
        """A checkpoint per scaffold."""
        return {
            scaffold: self.trained(self.base, self.examples([scaffold], seed), arm, seed)
            for scaffold, arm in zip(self.settings.scaffolds, self.parent_arms, strict=True)
        }

    def mixtures(self, seed: int) -> dict[str, Path]:
        """All scaffolds' examples in one checkpoint, at one parent's steps and at all parents' steps."""
        examples = self.examples(self.settings.scaffolds, seed)
        steps = self.settings.train.steps or ceil(
            self.settings.samples * self.settings.train.epochs / self.settings.train.batch_samples
        )
        return {
            arm: self.trained(self.base, examples, arm, seed, steps=factor * steps)
            for arm, factor in (("mixture, one's steps", 1), (MIXTURE, len(self.settings.scaffolds)))
        }

    def examples(self, scaffolds: Sequence[str], seed: int) -> list[Example]:
        """The examples of a seed: as many of each scaffold."""
        found = [self._spread(examples_of(self.run.shards, [name]), seed) for name in scaffolds]
        return [example for part in found for example in part[: self.settings.samples]]

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

    def merges(self, seed: int) -> dict[str, Path]:
        """The parents of a seed merged in every way asked for."""
        parents = list(self.parents(seed).values())
        arms = {f"merge {name}": how for name, how in self.settings.merges.items()}
        found = {arm: self.merged(parents, how, arm, seed) for arm, how in arms.items()}
        if self.settings.search:
            found["merge searched"] = self.searched(parents, self.settings.search, seed)
        return found

    def merged(self, models: Sequence[Path], how: MergeArm, arm: str, seed: int) -> Path:
        """One merge."""
        out = self.checkpoint(arm, seed)
        return out if out.exists() else merge(_recipe(how, self.base, models, seed), out)

    def searched(self, parents: Sequence[Path], settings: SearchSettings, seed: int) -> Path:
        """The merge with the weights that do best on the development tasks, evaluation by evaluation resumable."""
        out = self.checkpoint("merge searched", seed)
        if out.exists():
            return out
        trial = out.with_name("trial")

        def score(weights: Sequence[float]) -> float:
            shutil.rmtree(trial, ignore_errors=True)
            merge(_weighted(settings, self.base, parents, weights, seed), trial)
            trials = [Trial(self.tasks["dev"], Setting(scaffold)) for scaffold in self.settings.scaffolds]
            rates = [_rate(o) for o in evaluate(trial, trials, self.settings.evaluation, arm="trial", seed=seed)]
            return sum(rates) / len(rates)

        best = search(score, [settings.start] * len(parents), settings, seed, out.with_name("search.jsonl"))
        shutil.rmtree(trial, ignore_errors=True)
        return merge(_weighted(settings, self.base, parents, best, seed), out)

    def soups(self) -> None:
        """For each scaffold, the mean of the parents of a seed and the next: a merge without a difference in data.

        One fewer than there are seeds, so that a seed that is added changes none.
        """
        for scaffold, arm in zip(self.settings.scaffolds, self.parent_arms, strict=True):
            for seed, other in pairwise(sorted(self.settings.seeds)):
                pair = [self.checkpoint(arm, seed), self.checkpoint(arm, other)]
                soup = self.merged(pair, MergeArm(method="linear"), f"soup {scaffold}", seed)
                self.try_all(soup, f"soup {scaffold}", seed, ("test",))

    def route(self, seed: int) -> None:
        """A router that knows the scaffold: each task goes to that scaffold's parent, whose outcome is taken over."""
        for setting in self.tried:
            self.take_over(f"parent {setting.scaffold}", ROUTER, setting, seed)

    def take_over(self, arm: str, name: str, setting: Setting, seed: int) -> None:
        """Keep what an arm was found to do under another name too."""
        for part in ("test", "dev", "transfer"):
            found = self.read(arm, setting, part, seed)
            if found and not self.read(name, setting, part, seed):
                self.write([outcome.model_copy(update={"arm": name}) for outcome in found], setting, part)

    def decide(self, folder: Path, arm: str, seed: int) -> None:
        """Record in the merge's lineage whether it may be promoted."""
        pairs = {
            scaffold: (
                self.read(arm, Setting(scaffold), "test", seed),
                self.read(f"parent {scaffold}", Setting(scaffold), "test", seed),
            )
            for scaffold in self.settings.scaffolds
        }
        gate.record(folder, gate.decide(pairs))

    def round_two(self, seed: int) -> None:
        """From each start: it plays new tasks, its verified samples join, parents and their merge."""
        settings = self.settings.round_two
        if settings is None:
            return
        for start in settings.starts:
            folder = self.start(start, seed)
            run = self.second_run(settings, folder, start, seed)
            parents = []
            for scaffold in self.settings.scaffolds:
                arm = f"round 2 from {start}, parent {scaffold}"
                examples = self._verified(run, scaffold)
                examples += self._spread(examples_of(self.run.shards, [scaffold]), seed)[: settings.samples]
                parents.append(self.trained(folder, examples, arm, seed, shards=run.shards))
                self.try_arm(parents[-1], arm, seed, [("test", Setting(scaffold))])
            arm = f"round 2 from {start}, merge"
            self.try_all(self.merged(parents, MergeArm(method="linear"), arm, seed), arm, seed, ("test",))

    def _verified(self, run: RunFolder, scaffold: str) -> list[Example]:
        """What the model solved in a run; a model that solved nothing adds nothing."""
        rows = store.read_table(run.path, "samples", ["scaffold", "verdict"]).to_pylist()
        kept = any(row["verdict"]["keep"] and row["scaffold"] == scaffold for row in rows)
        return examples_of(run.shards, [scaffold]) if kept else []

    def start(self, name: str, seed: int) -> Path:
        """The checkpoint that round two starts from, the best of its kind on the development tasks."""
        if name == "mixture":
            return self.checkpoint(MIXTURE, seed)
        arms = self.parent_arms if name == "parent" else list(self.merges(seed))
        return self.checkpoint(self.best(arms, seed), seed)

    def best(self, arms: Sequence[str], seed: int) -> str:
        """The arm with the highest mean rate over scaffolds on the development tasks; the first of equals."""
        free = [setting for setting in self.tried if not setting.constrained]
        return max(arms, key=lambda arm: sum(_rate(self.read(arm, setting, "dev", seed)) for setting in free))

    def second_run(self, settings: RoundTwo, model: Path, start: str, seed: int) -> RunFolder:
        """A run of the whole pipeline on the same usage in which the model plays, with new tasks."""
        asked = self.settings.run
        play = PlaySettings(
            policy="engine",
            scaffolds=self.settings.scaffolds,
            layouts=["solo"],
            efforts=[self.settings.evaluation.effort],
            repeats=settings.repeats,
            max_turns=self.settings.evaluation.max_turns,
            max_reply_tokens=self.settings.evaluation.max_reply_tokens,
        )
        config = asked.model_copy(
            update={
                "seed": derive_seed("round two", asked.seed, seed) % 2**31,
                "engine": EngineSettings(
                    model=str(model.resolve()), temperature=settings.temperature, top_p=1.0, constrain_tools=False
                ),
                "tasks": asked.tasks.model_copy(update={"per_family": settings.tasks}),
                "rollout": RolloutSettings(plays=[play]),
            }
        )
        config = RunConfig.model_validate(config.model_dump())
        source = Path(self.run.facts()["input"])
        run = stages.open_for(source, self.out / "runs" / f"seed-{seed}" / f"from-{start}", config, self.progress)
        with locked(run.path):
            stages.run_all(run, self.progress)
        self.check_contamination(run)
        return run

    def trained(
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
        if out.exists():
            return out
        self.progress.say(f"seed {seed}: training {arm} on {len(examples)} examples")
        lineage: dict[str, Any] = {"usage": self.run.facts()["inputs"], "shards": shard_hashes(self.run.shards)}
        if shards:
            lineage["round two"] = shard_hashes(shards)
        out.parent.mkdir(parents=True, exist_ok=True)
        return train(base, examples, out, settings, lineage)

    def checkpoint(self, arm: str, seed: int) -> Path:
        """Where the weights of an arm are."""
        return self.out / "checkpoints" / f"seed-{seed}" / _slug(arm)

    def try_all(self, model: Path, arm: str, seed: int, sets: Sequence[str] = ("test", "dev", "transfer")) -> None:
        """An arm through every setting; on development tasks through the free ones, which the choices are made by."""
        tried = [(name, s) for name in sets for s in self.tried if name != "dev" or not s.constrained]
        self.try_arm(model, arm, seed, tried)

    def try_arm(
        self,
        model: Path,
        arm: str,
        seed: int,
        tried: Sequence[tuple[str, Setting]],
        shots: Mapping[str, Sequence[ChatTurn]] = MappingProxyType({}),
    ) -> None:
        """What is missing of an arm on sets through settings; each is kept as soon as it is there."""
        todo = [(name, s) for name, s in tried if self.tasks[name] and not self.read(arm, s, name, seed)]
        trials = [Trial(self.tasks[name], s, shots.get(s.scaffold, ())) for name, s in todo]
        found = evaluate(model, trials, self.settings.evaluation, arm=arm, seed=seed)
        for (name, setting), outcomes in zip(todo, found, strict=True):
            self.write(outcomes, setting, name)
            self.progress.say(f"seed {seed}: {arm}, {setting}, {name}: {_rate(outcomes):.0%} of {len(outcomes)}")

    def read(self, arm: str, setting: Setting, name: str, seed: int) -> list[Outcome]:
        """What an evaluation found; empty when it has not been made."""
        path = self._place(arm, setting, name, seed)
        return [Outcome.model_validate_json(line) for line in path.read_text().splitlines()] if path.exists() else []

    def write(self, found: Sequence[Outcome], setting: Setting, name: str) -> None:
        """Keep what an evaluation found: JSON lines, one per attempt."""
        path = self._place(found[0].arm, setting, name, found[0].seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(outcome.model_dump_json() + "\n" for outcome in found))

    def _place(self, arm: str, setting: Setting, name: str, seed: int) -> Path:
        return self.out / "outcomes" / name / f"seed-{seed}" / f"{_slug(arm)}--{_slug(str(setting))}.jsonl"


MIXTURE = "mixture, all steps"
BEST = "merge, best by development tasks"
_HELD_OUT = {"errands": errands.ERRANDS_FAMILY, "lookups": lookups.LOOKUPS_FAMILY}


def _structure_of(task: Task) -> str:
    family = _HELD_OUT.get(task.environment)
    return family.structure_of(task) if family else task.kind


def _values_of(task: Task) -> tuple[str, ...]:
    return _HELD_OUT[task.environment].values_of(task)


def _drawn(sample: Sample) -> int:
    return derive_seed("shots", sample.sample_id)


def _rate(outcomes: Sequence[Outcome]) -> float:
    return sum(o.passed for o in outcomes) / len(outcomes) if outcomes else 0.0


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() or c == "_" else " " for c in name).split())


def _recipe(how: MergeArm, base: Path, models: Sequence[Path], seed: int) -> MergeRecipe:
    return MergeRecipe(
        method=how.method,
        base_model=str(base) if METHODS[how.method].base == "required" else None,
        models=[str(model) for model in models],
        parameters={"weight": 1.0} | how.parameters,
        seed=seed,
    )


def _weighted(
    settings: SearchSettings, base: Path, models: Sequence[Path], weights: Sequence[float], seed: int
) -> MergeRecipe:
    recipe = _recipe(MergeArm(method=settings.method, parameters=settings.parameters), base, models, seed)
    sources = [
        source.model_copy(update={"parameters": {"weight": weight}})
        for source, weight in zip(recipe.models, weights, strict=True)
    ]
    return recipe.model_copy(update={"models": sources})
