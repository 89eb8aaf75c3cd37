"""What outcomes say of one arm and of two, where tasks share wordings and arms are trained with several seeds.

Called by the evaluation, its gate and its report. Outcomes go in as `outcomes.grid_of` wants them: every task under
every seed with the same number of repeats. Their order has no effect.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from pipelines.posttrain.outcomes import Grid, grid_of
from pipelines.posttrain.statistics import holm, pass_at_k, tokens_per_solved, wilson
from schemas.errors import InputError
from schemas.evaluation import Outcome

DRAWS = 2000


@dataclass(frozen=True)
class Comparison:
    """Arm a against arm b on the same (task, training seed) pairs.

    `difference` is rate_a - rate_b; `only_a` counts pairs of which a solved the larger share, `only_b` those of b.
    `p` and `p_seeds` are those of `compare`.
    """

    pairs: int
    rate_a: float
    rate_b: float
    difference: float
    low: float
    high: float
    only_a: int
    only_b: int
    p: float
    p_seeds: float | None


@dataclass(frozen=True)
class Row:
    """One arm through one scaffold. `interval` says which one `low` and `high` are.

    `tokens_per_solved` is None when nothing is solved, `design_effect` when it is undefined.
    """

    arm: str
    scaffold: str
    tasks: int
    seeds: int
    rate: float
    by_seed: dict[int, float]
    low: float
    high: float
    interval: Literal["wilson", "clustered"]
    tokens_per_solved: float | None
    design_effect: float | None


def clustered(
    outcomes: Sequence[Outcome], draws: int = DRAWS, seed: int = 0, confidence: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the pass rate, from drawing wordings and, where there are several, training seeds anew.

    Both are drawn with replacement and independently of each other (the pigeonhole bootstrap, Owen 2007), a wording
    with all its tasks; repeats stay as they are. Three training seeds make a coarse interval: one draw in nine is of a
    single seed, and the variance between seeds comes out a third too small. Few wordings (under about 20) make it too
    narrow. Where no draw differs, or there is one wording, a percentile says nothing, and the interval is the rate
    with the width of Wilson's at none of n = number of wordings: z^2 / (n + z^2).
    """
    grid = grid_of(outcomes)
    return _interval(grid, grid.passed / grid.repeats, 0.0, draws, seed, confidence)


def design_effect(outcomes: Sequence[Outcome]) -> float | None:
    """Variance of the rate with wordings as clusters, over that of as many independent attempts (Kish 1965, 8.2).

    C / (C - 1) sum_c (sum_{i in c} (y_i - rate))^2 / n^2 over rate (1 - rate) / (n - 1), for n attempts y_i in C
    wordings: 1 when each wording stands for one attempt. Undefined, None, for one wording, and when all or none passed.
    """
    grid = grid_of(outcomes)
    rate, n, clusters = grid.rate, grid.passed.size * grid.repeats, len(grid.wordings)
    if clusters < 2 or rate in (0.0, 1.0):
        return None
    residuals = grid.by_cluster(grid.passed - rate * grid.repeats).sum(axis=1)
    variance = clusters / (clusters - 1) * float((residuals**2).sum()) / n**2
    return variance / (rate * (1 - rate) / (n - 1))


def compare(
    a: Sequence[Outcome], b: Sequence[Outcome], draws: int = DRAWS, seed: int = 0, confidence: float = 0.95
) -> Comparison:
    """Two arms on the same tasks and training seeds. Raises InputError when their pairs are not the same.

    The interval is that of `clustered` for the differences of pairs: with several seeds it speaks of new tasks and new
    trainings. p is the exact two-sided sign-flip test on the wordings' summed differences (Fisher 1935), never 0; where
    each wording stands once, with one seed and one repeat, it is McNemar's exact test. It speaks of new tasks for these
    very trainings: two trainings of one method may well differ. p_seeds is the same test on the seeds' sums, None for
    one seed: it speaks of new trainings on these tasks, and of s seeds it is at least 2^(1 - s).
    """
    left, right = grid_of(a), grid_of(b)
    if (left.tasks, left.seeds) != (right.tasks, right.seeds):
        pairs = {(t, s) for t in left.tasks for s in left.seeds} ^ {(t, s) for t in right.tasks for s in right.seeds}
        raise InputError(f"{len(pairs)} pairs of task and seed stand on one side alone, first {min(pairs)}")
    if [left.wordings[i] for i in left.cluster] != [right.wordings[i] for i in right.cluster]:
        raise InputError("the two sides give the same tasks different wordings")
    # Whole numbers, so that a difference has one value and p is exact: shares in units of 1 / unit.
    unit = lcm(left.repeats, right.repeats)
    more = left.passed * (unit // left.repeats) - right.passed * (unit // right.repeats)
    low, high = _interval(left, more / unit, -1.0, draws, seed, confidence)
    return Comparison(
        pairs=more.size,
        rate_a=left.rate,
        rate_b=right.rate,
        difference=float(more.mean() / unit),
        low=low,
        high=high,
        only_a=int((more > 0).sum()),
        only_b=int((more < 0).sum()),
        p=_sign_flip(left.by_cluster(more).sum(axis=1)),
        p_seeds=_sign_flip(more.sum(axis=0)) if len(left.seeds) > 1 else None,
    )


def pass_at_k_over(
    outcomes: Sequence[Outcome], k: int, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Mean of `pass_at_k` over tasks and training seeds, and its interval as of `clustered`: (value, low, high).

    Raises InputError when there are fewer than k repeats.
    """
    grid = grid_of(outcomes)
    table = np.array([pass_at_k(grid.repeats, passed, k) for passed in range(grid.repeats + 1)])
    values = table[grid.passed]
    return float(values.mean()), *_interval(grid, values, 0.0, draws, seed, confidence)


def row(outcomes: Sequence[Outcome], draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> Row:
    """A row of a report. Wilson's interval where attempts are independent: one seed, one repeat, each wording once."""
    grid = grid_of(outcomes)
    independent = grid.passed.size * grid.repeats == len(grid.wordings)
    low, high = (
        wilson(int(grid.passed.sum()), len(outcomes), confidence)
        if independent
        else _interval(grid, grid.passed / grid.repeats, 0.0, draws, seed, confidence)
    )
    return Row(
        arm=outcomes[0].arm,
        scaffold=outcomes[0].scaffold,
        tasks=len(grid.tasks),
        seeds=len(grid.seeds),
        rate=grid.rate,
        by_seed=dict(zip(grid.seeds, (grid.passed.mean(axis=0) / grid.repeats).tolist(), strict=True)),
        low=low,
        high=high,
        interval="wilson" if independent else "clustered",
        tokens_per_solved=tokens_per_solved(outcomes),
        design_effect=design_effect(outcomes),
    )


def adjusted(comparisons: Mapping[str, Comparison]) -> dict[str, float]:
    """p of every comparison, corrected for their number by `holm`."""
    return dict(zip(comparisons, holm([each.p for each in comparisons.values()]), strict=True))


def _interval(
    grid: Grid, values: npt.NDArray[np.float64], least: float, draws: int, seed: int, confidence: float
) -> tuple[float, float]:
    """Of the mean of [tasks, seeds] values in [least, 1], as `clustered` says."""
    if draws < 1 or not 0 < confidence < 1:
        raise InputError(f"an interval from {draws} draws at confidence {confidence}")
    mean, clusters = float(values.mean()), len(grid.wordings)
    rng = np.random.Generator(np.random.Philox(key=seed))
    chosen = _counts(rng, draws, clusters)
    by_seed = chosen @ grid.by_cluster(values) / (chosen @ np.bincount(grid.cluster))[:, None]
    seeds = len(grid.seeds)
    drawn = (by_seed * _counts(rng, draws, seeds)).sum(axis=1) / seeds if seeds > 1 else by_seed[:, 0]
    if clusters == 1 or float(np.ptp(drawn)) < 1e-12:
        z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
        return max(least, mean - z2 / (clusters + z2)), min(1.0, mean + z2 / (clusters + z2))
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return min(low, mean), max(high, mean)


def _counts(rng: np.random.Generator, draws: int, n: int) -> npt.NDArray[np.float64]:
    """How often each of n things stands in a sample of n with replacement: [draws, n]."""
    return rng.multinomial(n, np.full(n, 1 / n), size=draws).astype(np.float64)


def _sign_flip(totals: npt.NDArray[np.int64]) -> float:
    """P(|sum of +-totals| >= |sum of totals|) with every sign as likely as the other, exactly.

    A sum of signed sizes is twice the sum of those with a plus, less all: the chances of the latter are counted up one
    size at a time, in O(len(totals) * sum of sizes).
    """
    sizes = np.abs(totals[totals != 0])
    observed = abs(int(totals.sum()))
    if observed == 0:
        return 1.0
    step = gcd(*sizes.tolist())
    sizes, observed = sizes // step, observed // step
    reach = int(sizes.sum())
    chance = np.zeros(reach + 1)
    chance[0] = 1.0
    for size in sizes.tolist():
        shifted = chance[: reach + 1 - size] / 2
        chance /= 2
        chance[size:] += shifted
    # From about a thousand wordings on, the true p may be smaller than any number.
    return max(sys.float_info.min, min(1.0, 2 * float(chance[(reach + observed) // 2 :].sum())))
