"""Statistics of evaluations in closed form: intervals, exact tests, corrections, power.

Called by `resampling`, by the evaluation and by its report.
"""

from collections.abc import Sequence
from math import ceil, comb, prod, sqrt
from statistics import NormalDist

from schemas.errors import InputError
from schemas.evaluation import Outcome


def wilson(passed: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a rate (Wilson 1927). Raises InputError unless 0 <= passed <= n and n > 0."""
    if not 0 <= passed <= n or n == 0:
        raise InputError(f"wilson: {passed} passed of {n}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, scale = passed / n, 1 + z * z / n
    middle = (rate + z * z / (2 * n)) / scale
    half = z / scale * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p of the discordant pairs: a binomial test at one half (McNemar 1947)."""
    if min(only_a, only_b) < 0:
        raise InputError(f"mcnemar: {only_a} and {only_b} discordant pairs")
    n = only_a + only_b
    tail = sum(comb(n, i) for i in range(min(only_a, only_b) + 1))
    return min(1.0, float(2 * tail / 2**n))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given (Holm 1979)."""
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Unbiased pass@k of one task from n attempts (Chen et al. 2021, arXiv:2107.03374)."""
    if not (0 <= passed <= n and 1 <= k <= n):
        raise InputError(f"pass_at_k: {passed} passed of {n}, k {k}")
    if n - passed < k:
        return 1.0
    return 1 - prod(1 - k / i for i in range(n - passed + 1, n + 1))


def tokens_per_solved(outcomes: Sequence[Outcome]) -> float | None:
    """Tokens of all attempts over solved attempts; None when none is solved."""
    solved = sum(outcome.passed for outcome in outcomes)
    return sum(outcome.tokens for outcome in outcomes) / solved if solved else None


def needed_tasks(
    difference: float, rate: float, power: float = 0.8, alpha: float = 0.05, discordant: float | None = None
) -> int:
    """Independent tasks that a two-sided paired test needs to see `rate` become `rate + difference`.

    n = (z(1 - alpha/2) sqrt(d) + z(power) sqrt(d - difference^2))^2 / difference^2 (Miettinen 1968, Connor 1987),
    d the share of tasks that one arm alone solves: `discordant`, or that of two arms which solve independently of each
    other, which is the most that arms have that find the same tasks hard. Tasks that share wordings are fewer
    independent ones: by `resampling.design_effect`. Raises InputError for rates that cannot be.
    """
    return ceil(_needed(difference, rate, power, alpha, discordant))


def detectable_difference(
    n: int, rate: float, power: float = 0.8, alpha: float = 0.05, discordant: float | None = None
) -> float:
    """The smallest rise from `rate` for which `n` independent tasks suffice: `needed_tasks` the other way round.

    Raises InputError where they suffice for none.
    """
    low, high = 0.0, min(1 - rate, 1.0 if discordant is None else discordant)
    if n < 1 or high <= 0 or _needed(high, rate, power, alpha, discordant) > n:
        raise InputError(f"detectable_difference: {n} tasks suffice for no rise from {rate}")
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _needed(middle, rate, power, alpha, discordant) <= n else (middle, high)
    return high


def _needed(difference: float, rate: float, power: float, alpha: float, discordant: float | None) -> float:
    other = rate + difference
    if not (0 <= rate <= 1 and 0 <= other <= 1 and difference and 0 < alpha < 1 and alpha / 2 < power < 1):
        raise InputError(f"power {power} at alpha {alpha} for a rate of {rate} that changes by {difference}")
    apart = rate * (1 - other) + other * (1 - rate) if discordant is None else discordant
    # Within rounding: a difference that is all of the discordant pairs is allowed.
    if not abs(difference) - 1e-9 <= apart <= min(rate + other, 2 - rate - other) + 1e-9:
        raise InputError(f"rates {rate} and {other} cannot differ on a share of {apart} of the tasks")
    z = NormalDist().inv_cdf
    return ((z(1 - alpha / 2) * sqrt(apart) + z(power) * sqrt(max(0.0, apart - difference**2))) / difference) ** 2
