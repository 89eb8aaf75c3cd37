"""Statistics of evaluations: intervals, exact tests, corrections. Called by the evaluation and its report."""

from collections.abc import Sequence
from math import comb, prod, sqrt
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
