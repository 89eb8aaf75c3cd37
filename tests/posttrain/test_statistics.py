"""The statistics of evaluation against closed forms."""

from itertools import combinations
from math import comb

import pytest

from pipelines.posttrain.statistics import (
    detectable_difference,
    holm,
    mcnemar,
    needed_tasks,
    pass_at_k,
    tokens_per_solved,
    wilson,
)
from schemas.errors import InputError
from schemas.evaluation import Outcome


def test_wilson_of_none_passed_is_its_closed_form():
    z2 = 1.959963984540054**2
    assert wilson(0, 10) == pytest.approx((0, z2 / (10 + z2)), abs=1e-12)
    with pytest.raises(InputError):
        wilson(0, 0)


def test_mcnemar_is_the_binomial_test():
    assert mcnemar(0, 0) == 1
    assert mcnemar(0, 5) == 2 / 32
    assert mcnemar(2, 8) == mcnemar(8, 2) == 2 * (1 + 10 + 45) / 1024


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_pass_at_k_is_the_share_of_draws_with_a_pass():
    for passed in range(7):
        for k in range(1, 7):
            draws = list(combinations(range(6), k))
            assert pass_at_k(6, passed, k) == pytest.approx(sum(min(d) < passed for d in draws) / len(draws))


def test_tokens_of_failures_count_too():
    rows = [
        Outcome(arm="a", scaffold="s", task_id=str(i), wording_id="w", seed=0, repeat=0, passed=i == 0, tokens=10)
        for i in range(3)
    ]
    assert tokens_per_solved(rows) == 30
    assert tokens_per_solved(rows[1:]) is None


def test_needed_tasks_of_ten_points():
    assert needed_tasks(-0.4, 0.5, discordant=0.5) == 23  # Connor's formula, shares 0.45 and 0.05
    # Ten points need about 200 tasks where a quarter of them tells the arms apart, or at a low rate.
    assert needed_tasks(0.1, 0.5, discordant=0.25) == 194
    assert needed_tasks(0.1, 0.1) == 202
    assert needed_tasks(0.1, 0.5) == 391  # independent arms at one half
    assert needed_tasks(0.1, 0.5) == needed_tasks(-0.1, 0.6)
    for wrong in ({"difference": 0}, {"rate": 0.95}, {"power": 1}, {"alpha": 0}, {"discordant": 0.05}):
        with pytest.raises(InputError):
            needed_tasks(**{"difference": 0.1, "rate": 0.5, **wrong})
    with pytest.raises(InputError, match="cannot differ on a share of"):
        needed_tasks(0.1, 0.1, discordant=0.5)


@pytest.mark.parametrize("discordant", [0.15, 0.25])
def test_needed_tasks_have_the_power_that_is_asked_for(discordant):
    """Power of the exact test, summed over all numbers of discordant pairs, with the 1 / difference that it costs."""
    n, win = needed_tasks(0.1, 0.5, discordant=discordant) + 10, (discordant + 0.1) / 2 / discordant
    power = sum(
        comb(n, d)
        * discordant**d
        * (1 - discordant) ** (n - d)
        * sum(comb(d, a) * win**a * (1 - win) ** (d - a) for a in range(d + 1) if mcnemar(a, d - a) <= 0.05)
        for d in range(n + 1)
    )
    assert power == pytest.approx(0.8, abs=0.02)


def test_detectable_difference_is_the_other_way_round():
    for rate, discordant in ((0.5, None), (0.1, None), (0.85, None), (0.5, 0.25)):
        n = needed_tasks(0.1, rate, discordant=discordant)
        assert detectable_difference(n, rate, discordant=discordant) == pytest.approx(0.1, rel=0.01)
    with pytest.raises(InputError, match="no rise from 1"):
        detectable_difference(300, 1.0)
    with pytest.raises(InputError, match="5 tasks"):
        detectable_difference(5, 0.5)
