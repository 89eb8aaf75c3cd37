"""What is known of each arm of a loop: its outcomes by set, setting and seed, on disk. Called by the loop.

An evaluation is a file of JSON lines, written whole; what is there is not made again, and a model is only made when an
outcome of it is missing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from agents.engine.base import ChatTurn
from pipelines.files import write_text
from pipelines.posttrain.evaluate import Setting, Trial, evaluate, settings_of
from pipelines.posttrain.heldout import Sets
from pipelines.progress import Progress
from schemas.errors import InputError
from schemas.evaluation import Outcome
from schemas.posttrain import LoopSettings

Make = Callable[[], Path]
"""Gives the folder of an arm's weights, made when it is not there."""
NO_SHOTS: Mapping[str, Sequence[ChatTurn]] = MappingProxyType({})


@dataclass(frozen=True)
class Arms:
    """`folder` holds SET/seed-N/ARM--SETTING.jsonl."""

    folder: Path
    settings: LoopSettings
    sets: Sets
    progress: Progress

    @cached_property
    def tried(self) -> list[Setting]:
        """What every arm is tried through."""
        return settings_of(self.settings.scaffolds)

    @property
    def free(self) -> list[Setting]:
        """Those in which decoding is free: the ones that choices are made by."""
        return [setting for setting in self.tried if not setting.constrained]

    def try_all(self, arm: str, seed: int, make: Make, sets: Sequence[str] = ("test", "dev", "transfer")) -> None:
        """An arm on sets through every setting; on development tasks through the free ones."""
        self.try_on(arm, seed, make, [(name, s) for name in sets for s in (self.free if name == "dev" else self.tried)])

    def try_on(
        self,
        arm: str,
        seed: int,
        make: Make,
        tried: Sequence[tuple[str, Setting]],
        shots: Mapping[str, Sequence[ChatTurn]] = NO_SHOTS,
    ) -> None:
        """What is missing of an arm on sets through settings; `shots` by scaffold."""
        todo = [(name, s) for name, s in tried if self.sets[name] and not self.read(arm, s, name, seed)]
        if not todo:
            return
        trials = [Trial(self.sets[name], s, shots.get(s.scaffold, ())) for name, s in todo]
        found = evaluate(make(), trials, self.settings.evaluation, arm=arm, seed=seed)
        for (name, setting), outcomes in zip(todo, found, strict=True):
            self._write(outcomes, setting, name)
            self.progress.say(f"seed {seed}: {arm}, {setting}, {name}: {rate(outcomes):.0%} of {len(outcomes)}")

    def take_over(self, arm: str, name: str, setting: Setting, seed: int) -> None:
        """Keep what an arm was found to do under another name too."""
        for part in self.sets:
            found = self.read(arm, setting, part, seed)
            if found and not self.read(name, setting, part, seed):
                self._write([outcome.model_copy(update={"arm": name}) for outcome in found], setting, part)

    def best(self, arms: Sequence[str], seed: int) -> str:
        """The arm with the highest mean rate over scaffolds on the development tasks; the first of equals."""
        return max(arms, key=lambda arm: sum(rate(self.read(arm, setting, "dev", seed)) for setting in self.free))

    def read(self, arm: str, setting: Setting, name: str, seed: int) -> list[Outcome]:
        """What an evaluation found; empty when it has not been made. InputError names file and line."""
        path = self._place(arm, setting, name, seed)
        return read_outcomes(path) if path.exists() else []

    def _write(self, found: Sequence[Outcome], setting: Setting, name: str) -> None:
        path = self._place(found[0].arm, setting, name, found[0].seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(outcome.model_dump_json() + "\n" for outcome in found))

    def _place(self, arm: str, setting: Setting, name: str, seed: int) -> Path:
        return self.folder / name / f"seed-{seed}" / f"{slug(arm)}--{slug(str(setting))}.jsonl"


def read_outcomes(path: Path) -> list[Outcome]:
    """The outcomes in a file of JSON lines. InputError names file and line of what is none."""
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            found.append(Outcome.model_validate_json(line))
        except ValueError as error:
            raise InputError(f"{path}:{number}: no outcome: {error}") from error
    return found


def rate(outcomes: Sequence[Outcome]) -> float:
    """Share that passed; 0 of none."""
    return sum(o.passed for o in outcomes) / len(outcomes) if outcomes else 0.0


def slug(name: str) -> str:
    """A name of ours as that of a file."""
    return "-".join("".join(c if c.isalnum() or c == "_" else " " for c in name).split())
