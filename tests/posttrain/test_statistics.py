"""The statistics of evaluation against closed forms."""

from itertools import combinations

import pytest

from pipelines.posttrain.statistics import holm, mcnemar, pass_at_k, tokens_per_solved, wilson
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
