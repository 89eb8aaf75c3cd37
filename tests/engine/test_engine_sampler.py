"""Draws: what they depend on, what they leave out, and what their logprobs mean."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.engine.base import Sampling
from agents.engine.effort import reply_budget
from agents.engine.sampler import distributions, draw, uniform


def probabilities(seed: int, size: int = 500, sharp: float = 3.0) -> np.ndarray:
    values = np.exp(np.random.default_rng(seed).normal(size=size) * sharp)
    return (values / values.sum()).astype(np.float32)


@given(st.integers(0, 10_000), st.sampled_from([0.3, 0.8, 0.95, 1.0]), st.floats(0.5, 4.0))
def test_draws_come_from_the_nucleus_and_logprobs_are_of_it(seed, top_p, sharp):
    p = probabilities(seed, sharp=sharp)
    drawn = draw(p, Sampling(1, top_p=top_p, seed=seed), 0)
    order = np.argsort(-p, kind="stable")
    mass = np.cumsum(p[order], dtype=np.float64)
    size = min(int(np.searchsorted(mass, top_p)) + 1, len(p))
    assert drawn.token in order[:size]
    assert drawn.logprob == pytest.approx(math.log(p[drawn.token] / mass[size - 1]), abs=1e-6)


def test_frequencies_follow_the_distribution():
    p = np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32)
    tokens = [draw(p, Sampling(1, top_p=0.9, seed=seed), 3).token for seed in range(4000)]
    shares = np.bincount(tokens, minlength=4) / len(tokens)
    assert shares[3] == 0
    assert np.allclose(shares[:3], p[:3] / 0.95, atol=0.03)


def test_a_draw_depends_on_seed_and_position_only():
    assert uniform(1, 2) == uniform(1, 2)
    assert len({uniform(s, p) for s in range(50) for p in range(50)}) == 2500


def test_greedy_takes_the_largest_with_logprob_zero():
    p = probabilities(1)
    assert draw(p, Sampling(1, temperature=0), 0) == draw(p, Sampling(1, temperature=0, seed=9), 5)
    assert draw(p, Sampling(1, temperature=0), 0).token == p.argmax()
    assert draw(p, Sampling(1, temperature=0), 0).logprob == 0.0


def test_masks_and_temperature_are_applied():
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    masks = torch.tensor([[False, False, False, True], [False] * 4])
    rows = distributions(logits.clone(), [Sampling(1, temperature=0.5), Sampling(1, temperature=0)], masks)
    assert rows[0, 3] == 0
    assert torch.allclose(rows[0, :3], torch.softmax(torch.tensor([2.0, 4.0, 6.0]), -1))
    assert torch.allclose(rows[1], torch.softmax(logits[1], -1))


@pytest.mark.parametrize(
    ("effort", "most", "expected"),
    [(None, 128, 128), (100, 128, 128), (50, 128, 64), (75, 512, 384), (1, 128, 16), (1, 8, 8)],
)
def test_effort_is_a_share_of_the_budget(effort, most, expected):
    assert reply_budget(effort, most) == expected


def test_effort_outside_its_range_is_an_error():
    with pytest.raises(ValueError, match="1-100"):
        reply_budget(0, 100)
