"""The family `errands`: one short request, one action. What it measures is how widely a wording is understood.

`build` is called by the task stage, `heldout` by the loop that measures training value. Train and eval differ in three
things at once: the sentence of the request (40 % of each kind's are for evaluation), the values (two pools that share
nothing) and the structure (30 % of each kind's). A task is a pure function of family, split, wording, pattern and seed.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from agents.environments import wording
from agents.environments.common import Script, submit, verification
from agents.environments.errand_kinds import ERRANDS, Draw, Errand, Kind, Split, digest, specs
from prompts import render
from schemas.errors import ConfigError
from schemas.ids import content_id, derive_seed
from schemas.pattern import UsagePattern
from schemas.task import BlueprintStep, Budget, Task

FAMILY = "errands"
WORDING_SHARE = 0.4
"""Share of a kind's sentences that only evaluation sees."""
DEV_SHARE = 0.25
"""Share of the evaluation sentences for `dev`; the others are for `test`."""
Part = Literal["dev", "test"]
STYLES: tuple[wording.Style, ...] = ("terse", "formal", "context")
_BUDGET = Budget(turns=4, output_tokens=1024, command_s=20.0, episode_s=300.0)
_NAMES = ("file", "text", "target", "folder", "old", "new", "n", "other", "word")


@dataclass(frozen=True)
class Family:
    """A name (also that of its templates) and its kinds."""

    name: str
    kinds: Mapping[str, Kind]

    def drawn(self, split: Split, wording_id: str, seed: int) -> tuple[Draw, Errand]:
        """The values of a task: the same arguments give the same."""
        kind = kind_of(wording_id)
        rng = random.Random(derive_seed(self.name, split, wording_id, seed))  # noqa: S311
        draw = Draw(rng, split, rng.choice(self.kinds[kind].structures(kind, split)))
        return draw, self.kinds[kind].make(draw)

    def task(self, pattern: UsagePattern, split: Split, wording_id: str, seed: int) -> Task:
        """A task with this wording. Its seed and wording are all that `structure_of` and `values_of` need."""
        draw, errand = self.drawn(split, wording_id, seed)
        _, style, number = wording_id.split(":")
        kind = kind_of(wording_id)
        text = wording.sections(f"environments/{self.name}/{kind}", errand.values)[f"request.{style}"][int(number)]
        kept = {path: digest(lines) for path, lines in draw.files.items() if path not in errand.changed}
        task = Task(
            task_id="",
            environment=self.name,
            kind=f"{self.name}/{kind}",
            pattern_id=pattern.pattern_id,
            seed=seed,
            split=split,
            wording_id=wording_id,
            style=_style(style),
            instruction=text,
            workspace=specs(draw),
            verification=verification(
                "files",
                {"points": {**errand.points, "others_kept": {"check": "present", "files": kept}}},
                list(errand.points),
                ["others_kept"],
            ),
            blueprint=self._steps(kind, draw, errand),
            # The result itself may be in plain sight (a line to write, the last line of a file); the action is not.
            answer=[errand.action.arguments_json],
            budget=_BUDGET,
            slip_rate=0.0,
        )
        return task.model_copy(update={"task_id": content_id("task", task.model_dump(exclude={"task_id", "split"}))})

    def structure_of(self, task: Task) -> str:
        """Kind and key of the structure, drawn again from split, wording and seed."""
        return f"{task.kind}|{self.drawn(task.split, task.wording_id, task.seed)[0].structure.key}"

    def values_of(self, task: Task) -> tuple[str, ...]:
        """Values from the pools, drawn again."""
        return tuple(self.drawn(task.split, task.wording_id, task.seed)[0].used)

    def _steps(self, kind: str, draw: Draw, errand: Errand) -> list[BlueprintStep]:
        # The thought says the request again, in one form for all sentences: what it asks, and which name is which.
        script = Script(draw.rng, self.name, dict.fromkeys(_NAMES, "") | errand.values)
        script.add("work", kind, errand.action)
        script.add("submit", "submit", submit(render(f"environments/{self.name}/answer").strip()))
        return script.steps


ERRANDS_FAMILY = Family(FAMILY, ERRANDS)


def kind_of(wording_id: str) -> str:
    """`errands/move:terse:3` → `move`."""
    return wording_id.partition(":")[0].rpartition("/")[2]


def _style(name: str) -> wording.Style:
    return next(style for style in STYLES if style == name)


@lru_cache
def wordings(family: str, kind: str) -> tuple[str, ...]:
    """Wording ids of a kind, in order of a hash."""
    lines = wording.sections(f"environments/{family}/{kind}", {name: name for name in _NAMES})
    found = [f"{family}/{kind}:{style}:{i}" for style in STYLES for i in range(len(lines[f"request.{style}"]))]
    return tuple(sorted(found, key=lambda wording_id: derive_seed("wording", wording_id)))


def wordings_of(kind: str, split: Split, part: Part | None = None) -> tuple[str, ...]:
    """Sentences of one side, by the hash of their id: the first 40 % for evaluation, a quarter of these for `dev`."""
    every = wordings(FAMILY, kind)
    cut = round(WORDING_SHARE * len(every))
    dev = round(DEV_SHARE * cut)
    if split == "train":
        return every[cut:]
    return {None: every[:cut], "dev": every[:dev], "test": every[dev:cut]}[part]


def build(pattern: UsagePattern, seed: int, eval_share: float = 0.15) -> Task:
    """One errand. Pure. `eval_share` is the share of seeds that give an evaluation task.

    Which sentences, values and structures are reserved does not depend on it: a train task never has any of them.
    """
    rng = random.Random(derive_seed(FAMILY, pattern.pattern_id, seed))  # noqa: S311
    split: Split = "eval" if derive_seed(FAMILY, "split", seed) % 10_000 < eval_share * 10_000 else "train"
    kind = rng.choice(sorted(ERRANDS))
    return ERRANDS_FAMILY.task(pattern, split, rng.choice(wordings_of(kind, split)), seed)


def structure_of(task: Task) -> str:
    """Kind, depth of file and of target, class of extension, form of text: `errands/move|0|1|md|plain`."""
    return ERRANDS_FAMILY.structure_of(task)


def values_of(task: Task) -> tuple[str, ...]:
    """Stems, folders, words and texts from the pools, those in the request first, then those of other files."""
    return ERRANDS_FAMILY.values_of(task)


def spread(lists: Mapping[str, list[str]]) -> list[str]:
    """Round robin over the lists until all are used up."""
    longest = max(map(len, lists.values()), default=0)
    return [found[i] for i in range(longest) for found in lists.values() if i < len(found)]


def shuffled(values: tuple[str, ...], *seed: object) -> list[str]:
    """The values in an order drawn by the seed."""
    return random.Random(derive_seed(*seed)).sample(values, len(values))  # noqa: S311


def heldout(count: int, split_part: Part, seed: int, pattern: UsagePattern) -> list[Task]:
    """`count` evaluation tasks, each with a sentence of its own, round robin over kinds.

    ConfigError where there are fewer sentences than tasks.
    """
    lists = {kind: shuffled(wordings_of(kind, "eval", split_part), FAMILY, kind, seed) for kind in ERRANDS}
    ids = spread(lists)
    if count > len(ids):
        raise ConfigError(f"errands: {count} held-out tasks wanted, {len(ids)} sentences for {split_part}")
    return [ERRANDS_FAMILY.task(pattern, "eval", each, derive_seed(FAMILY, seed, each)) for each in ids[:count]]
