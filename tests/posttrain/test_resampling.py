"""Intervals and tests over outcomes: by hand, as properties, and by simulation under known truths."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.posttrain.outcomes import solved
from pipelines.posttrain.resampling import adjusted, clustered, compare, design_effect, pass_at_k_over, row
from pipelines.posttrain.statistics import holm, mcnemar, wilson
from schemas.errors import InputError
from schemas.evaluation import Outcome

Z2 = 1.959963984540054**2


def outcomes(passed, per_wording=1, arm="a", repeats=1):
    """Of [tasks, seeds] numbers of passed repeats; `per_wording` neighbours share a wording."""
    return [
        Outcome(
            arm=arm,
            scaffold="s",
            task_id=f"t{task:04}",
            wording_id=f"w{task // per_wording:04}",
            seed=seed,
            repeat=repeat,
            passed=repeat < count,
            tokens=10,
        )
        for task, seeds in enumerate(np.atleast_2d(passed).tolist())
        for seed, count in enumerate(seeds)
        for repeat in range(repeats)
    ]


def column(*values):
    return np.array(values)[:, None]


@st.composite
def pairs(draw, most_repeats=3):
    """Two arms on the same tasks and seeds: (a, b, repeats, tasks a wording)."""
    tasks, seeds, repeats = draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(1, most_repeats))
    sheet = st.lists(
        st.lists(st.integers(0, repeats), min_size=seeds, max_size=seeds), min_size=tasks, max_size=tasks
    ).map(np.array)
    return draw(sheet), draw(sheet), repeats, draw(st.integers(1, 3))


def test_solved_is_the_share_of_repeats():
    assert solved(outcomes([[1, 0], [2, 2]], repeats=2)) == {
        ("t0000", 0): 0.5,
        ("t0000", 1): 0.0,
        ("t0001", 0): 1.0,
        ("t0001", 1): 1.0,
    }


def test_what_is_no_whole_grid_is_refused():
    rows = outcomes([[1, 0], [1, 1]])
    for wrong, words in (
        ([], "of none"),
        ([*rows, rows[0]], "task t0000, seed 0, repeat 0 stands there twice"),
        ([*rows[:3], rows[3].model_copy(update={"arm": "b"})], "one arm and scaffold"),
        ([*rows[:3], rows[3].model_copy(update={"wording_id": "w9"})], "task t0001 has two wordings"),
        (rows[:3], "task t0001, seed 1: 0 of 1 repeats"),
    ):
        with pytest.raises(InputError, match=words):
            row(wrong)
    with pytest.raises(InputError, match="0 draws"):
        clustered(rows, draws=0)
    for wrong, words in (
        (rows[:2], "2 pairs of task and seed stand on one side alone, first .'t0001', 0"),
        (outcomes([[1, 0], [1, 1]], per_wording=2), "different wordings"),
    ):
        with pytest.raises(InputError, match=words):
            compare(rows, wrong)


@given(pairs(), st.randoms())
def test_the_order_of_outcomes_has_no_effect(case, random):
    a, b, repeats, per_wording = case
    one, other = (outcomes(x, per_wording, arm, repeats) for x, arm in ((a, "a"), (b, "b")))
    before = row(one, draws=50), compare(one, other, draws=50), pass_at_k_over(one, repeats, draws=50)
    random.shuffle(one)
    random.shuffle(other)
    assert before == (row(one, draws=50), compare(one, other, draws=50), pass_at_k_over(one, repeats, draws=50))


@given(pairs())
def test_an_interval_holds_its_rate_and_a_difference_turns_with_its_arms(case):
    a, b, repeats, per_wording = case
    one, other = (outcomes(x, per_wording, arm, repeats) for x, arm in ((a, "a"), (b, "b")))
    low, high = clustered(one, draws=200)
    assert 0 <= low <= row(one).rate <= high <= 1
    assert low < high
    there, back = compare(one, other, draws=200), compare(other, one, draws=200)
    assert -1 <= there.low <= there.difference <= there.high <= 1
    assert there.difference == pytest.approx(there.rate_a - there.rate_b)
    assert (there.only_a, there.only_b, there.p) == (back.only_b, back.only_a, back.p)
    assert (back.difference, back.low, back.high) == pytest.approx((-there.difference, -there.high, -there.low))
    assert 0 < there.p <= 1


@given(pairs(most_repeats=1))
def test_one_attempt_a_wording_is_mcnemar(case):
    a, b = case[0][:, :1], case[1][:, :1]
    found = compare(outcomes(a), outcomes(b, arm="b"), draws=1)
    assert found.p == pytest.approx(mcnemar(int((a > b).sum()), int((b > a).sum())), rel=1e-12)


@given(pairs())
def test_p_is_the_share_of_all_signs(case):
    a, b, repeats, per_wording = case
    more = (a - b).sum(axis=1)
    totals = np.array([more[i : i + per_wording].sum() for i in range(0, len(more), per_wording)])
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(totals))).reshape(len(totals), -1)
    share = (np.abs(totals @ signs) >= abs(totals.sum())).mean()
    one, other = outcomes(a, per_wording, "a", repeats), outcomes(b, per_wording, "b", repeats)
    assert compare(one, other, draws=1).p == pytest.approx(share)


def test_trainings_that_differ_by_chance_are_no_better_method():
    """Each seed of either arm has a rate of its own: p takes that for a difference, p_seeds and the interval do not."""
    rng, by_task, by_seed, covered, runs = np.random.default_rng(8), 0, 0, 0, 100
    for run in range(runs):
        a, b = ((rng.random((150, 6)) < rng.uniform(0.3, 0.7, 6)).astype(int) for _ in range(2))
        found = compare(outcomes(a), outcomes(b, arm="b"), draws=200, seed=run)
        by_task += found.p <= 0.1
        by_seed += found.p_seeds <= 0.1
        covered += found.low <= 0 <= found.high
    assert by_task / runs > 0.4
    assert by_seed / runs <= 0.16
    assert covered / runs > 0.8
    assert compare(outcomes([[1, 1, 1]]), outcomes([[0, 0, 0]], arm="b")).p_seeds == 0.25
    assert compare(outcomes(column(1, 0)), outcomes(column(0, 1), arm="b")).p_seeds is None


def test_arms_of_different_repeats_compare_by_share():
    found = compare(outcomes(column(1, 3, 0), repeats=3), outcomes(column(1, 1, 0), arm="b", repeats=2))
    assert found.difference == pytest.approx((1 / 3 + 1 - 1 / 2 - 1 / 2) / 3)
    assert (found.pairs, found.only_a, found.only_b) == (3, 1, 1)
    assert found.p == 1.0  # +3/6 and -1/6: no signs give less than these
    many = compare(outcomes(np.ones((1500, 1), int)), outcomes(np.zeros((1500, 1), int), arm="b"), draws=10)
    assert 0 < many.p < 1e-300


def test_where_nothing_varies_the_width_is_wilsons():
    assert clustered(outcomes(np.ones((30, 2), int), 3)) == pytest.approx(wilson(10, 10))
    assert clustered(outcomes(np.zeros((10, 1), int))) == pytest.approx(wilson(0, 10))
    same = compare(outcomes(column(1, 0, 1, 0)), outcomes(column(1, 0, 1, 0), arm="b"))
    assert (same.low, same.high, same.p) == pytest.approx((-Z2 / (4 + Z2), Z2 / (4 + Z2), 1))
    assert clustered(outcomes(column(1, 0, 1, 0), 4)) == (0, 1)  # one wording


def test_design_effect_by_hand():
    assert design_effect(outcomes(column(1, 0, 1, 1, 0, 0, 1))) == pytest.approx(1)
    # Two wordings of three tasks, all or none: residuals 1.5 and -1.5, 2 * 4.5 / 36 over 0.25 / 5.
    assert design_effect(outcomes(column(1, 1, 1, 0, 0, 0), 3)) == pytest.approx(5)
    assert design_effect(outcomes(column(1, 1))) is None
    assert design_effect(outcomes(column(1, 0), 2)) is None


def test_pass_at_k_over_tasks():
    value, low, high = pass_at_k_over(outcomes(column(0, 1, 3), repeats=3), 2)
    assert value == pytest.approx((0 + 2 / 3 + 1) / 3)
    assert (low, high) == pytest.approx((0, 1))
    with pytest.raises(InputError):
        pass_at_k_over(outcomes(column(0, 1)), 2)


def test_a_row_says_which_interval_it_has():
    one = row(outcomes(column(1, 1, 0, 1)))
    assert (one.tasks, one.seeds, one.rate, one.by_seed) == (4, 1, 0.75, {0: 0.75})
    assert (one.interval, one.low, one.high) == ("wilson", *wilson(3, 4))
    assert one.tokens_per_solved == pytest.approx(40 / 3)
    more = row(outcomes([[1, 0], [1, 1], [0, 0], [1, 1]]))
    assert (more.seeds, more.rate, more.by_seed, more.interval) == (2, 0.625, {0: 0.75, 1: 0.5}, "clustered")
    assert row(outcomes(column(1, 1, 0, 1), 2)).interval == "clustered"
    assert row(outcomes(column(1, 2, 0, 1), repeats=2)).interval == "clustered"


def test_adjusted_is_holm_by_name():
    base = outcomes(np.zeros((12, 1), int), arm="base")
    found = {n: compare(outcomes(column(*[i < n for i in range(12)]).astype(int)), base, draws=10) for n in (6, 12, 7)}
    found = {str(n): each for n, each in found.items()}
    assert list(adjusted(found).items()) == list(zip(found, holm([each.p for each in found.values()]), strict=True))


def test_three_hundred_tasks_take_a_moment():
    a = outcomes(np.random.default_rng(0).integers(0, 2, (300, 3)))
    b = outcomes(np.random.default_rng(1).integers(0, 2, (300, 3)), arm="b")
    began = time.process_time()
    compare(a, b)
    assert time.process_time() - began < 1


def test_under_the_null_p_is_small_as_rarely_as_it_says():
    """Wordings that both arms find easy or hard, differences that wordings share: McNemar would see too much."""
    rng, ours, naive, runs = np.random.default_rng(5), [], [], 400
    for _ in range(runs):
        # In each wording both arms fail on three tasks, or one arm, either alike, solves all three.
        which = rng.integers(0, 3, 30).repeat(3)[:, None]
        a, b = (which == 1).astype(int), (which == 2).astype(int)
        ours.append(compare(outcomes(a, 3), outcomes(b, 3, "b"), draws=1).p)
        naive.append(mcnemar(int(a.sum()), int(b.sum())))
    for level in (0.05, 0.2, 0.5):
        assert np.mean(np.array(ours) <= level) <= level + 2 * np.sqrt(level * (1 - level) / runs)
    assert np.mean(np.array(ours) <= 0.2) > 0.1
    assert np.mean(np.array(naive) <= 0.05) > 0.15


def test_the_clustered_interval_covers_where_wilsons_does_not():
    """40 wordings of 6 tasks that are solved or not together, nearly; the true rate is one half."""
    rng, ours, naive, runs = np.random.default_rng(6), 0, 0, 200
    for run in range(runs):
        chance = rng.choice([0.05, 0.95], 40).repeat(6)[:, None]
        passed = (rng.random(chance.shape) < chance).astype(int)
        low, high = clustered(outcomes(passed, 6), draws=500, seed=run)
        ours += low <= 0.5 <= high
        low, high = wilson(int(passed.sum()), passed.size)
        naive += low <= 0.5 <= high
    assert 0.9 <= ours / runs <= 0.99
    assert naive / runs < 0.75


def test_training_seeds_widen_the_interval():
    """Seeds of rates 0.2, 0.5 and 0.8: 200 tasks alone would give half a width of about 0.04."""
    rng = np.random.default_rng(7)
    passed = (rng.random((200, 3)) < np.array([0.2, 0.5, 0.8])).astype(int)
    low, high = clustered(outcomes(passed))
    assert low < 0.3 and high > 0.7
    assert clustered(outcomes(passed), seed=1) != (low, high)
