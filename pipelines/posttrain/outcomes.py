"""Outcomes of one arm as a grid of tasks and training seeds. Called by `resampling` and by the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import InputError
from schemas.evaluation import Outcome


@dataclass(frozen=True, eq=False)
class Grid:
    """Passed attempts of `repeats`, [tasks, seeds]; `cluster`, [tasks], is the index of each task's wording.

    Tasks, seeds and wordings are sorted.
    """

    tasks: list[str]
    seeds: list[int]
    wordings: list[str]
    cluster: npt.NDArray[np.int64]
    passed: npt.NDArray[np.int64]
    repeats: int

    @property
    def rate(self) -> float:
        """Share of all attempts that passed."""
        return float(self.passed.mean() / self.repeats)

    def by_cluster(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sums of [tasks, seeds] values over the tasks of each wording: [wordings, seeds]."""
        sums = np.zeros((len(self.wordings), values.shape[1]), dtype=values.dtype)
        np.add.at(sums, self.cluster, values)
        return sums


def solved(outcomes: Sequence[Outcome]) -> dict[tuple[str, int], float]:
    """Share of repeats passed, by (task_id, training seed).

    Raises InputError for outcomes of several arms or scaffolds, of none, and for an attempt that stands twice.
    """
    return {pair: sum(passes) / len(passes) for pair, passes in _attempts(outcomes).items()}


def grid_of(outcomes: Sequence[Outcome]) -> Grid:
    """Outcomes of one arm and scaffold, in any order, as a grid.

    Raises InputError as `solved` does, for a task of two wordings, and where an attempt is missing: a rate over what
    happens to be there is that of easier tasks.
    """
    attempts = _attempts(outcomes)
    wording_of: dict[str, str] = {}
    for outcome in outcomes:
        if wording_of.setdefault(outcome.task_id, outcome.wording_id) != outcome.wording_id:
            raise InputError(f"task {outcome.task_id} has two wordings")
    tasks, seeds = sorted(wording_of), sorted({seed for _, seed in attempts})
    repeats = max(map(len, attempts.values()))
    for pair in ((task, seed) for task in tasks for seed in seeds):
        if len(attempts.get(pair, ())) != repeats:
            raise InputError(f"task {pair[0]}, seed {pair[1]}: {len(attempts.get(pair, ()))} of {repeats} repeats")
    wordings = sorted(set(wording_of.values()))
    number = {wording: i for i, wording in enumerate(wordings)}
    return Grid(
        tasks=tasks,
        seeds=seeds,
        wordings=wordings,
        cluster=np.array([number[wording_of[task]] for task in tasks]),
        passed=np.array([[sum(attempts[task, seed]) for seed in seeds] for task in tasks]),
        repeats=repeats,
    )


def _attempts(outcomes: Sequence[Outcome]) -> dict[tuple[str, int], list[bool]]:
    arms = {(outcome.arm, outcome.scaffold, outcome.constrained) for outcome in outcomes}
    if len(arms) != 1:
        raise InputError(f"outcomes of one arm and scaffold are wanted, these are of {sorted(arms) or 'none'}")
    found: dict[tuple[str, int], list[bool]] = {}
    seen: set[tuple[str, int, int]] = set()
    for outcome in outcomes:
        attempt = (outcome.task_id, outcome.seed, outcome.repeat)
        if attempt in seen:
            raise InputError(f"task {attempt[0]}, seed {attempt[1]}, repeat {attempt[2]} stands there twice")
        seen.add(attempt)
        found.setdefault(attempt[:2], []).append(outcome.passed)
    return found
