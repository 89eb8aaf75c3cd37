"""Draws: what they depend on, what they leave out, and what their logprobs mean."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.engine.base import Sampling
from agents.engine.grammar import Constraint
from agents.engine.sampler import pick, sample, uniform
from agents.engine.sequence import Sequence
from agents.engine.tokenizer import ChatTokenizer

EOS, BANNED = 2, [0, 1, 3]


def logits(seed: int, rows: int = 1, size: int = 500, sharp: float = 3.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, size)) * sharp).float()


def sequence(sampling: Sampling, position: int = 0, matcher: Constraint | None = None) -> Sequence:
    return Sequence("c", [9] * (3 + position), 3, 0, sampling.max_tokens, sampling, print, matcher=matcher)


def draw(rows: torch.Tensor, *sequences: Sequence, banned: list[int] = BANNED):
    return sample(rows.clone(), list(sequences), banned, EOS)


@given(
    st.integers(0, 10_000), st.sampled_from([0.3, 0.8, 0.95, 0.999999, 1.0]), st.floats(0.1, 5.0), st.floats(0.05, 3.0)
)
def test_draws_come_from_the_nucleus_and_logprobs_are_of_it(seed, top_p, sharp, temperature):
    row = logits(seed, sharp=sharp)
    drawn = draw(row, sequence(Sampling(9, temperature, top_p, seed)))[0]
    row[0, BANNED] = -math.inf
    p = torch.softmax(row[0] / temperature, -1).numpy()
    order = np.argsort(-p, kind="stable")
    mass = np.cumsum(p[order], dtype=np.float64)
    size = min(int(np.searchsorted(mass, top_p)) + 1, len(p))
    assert drawn.token in order[:size]
    assert drawn.logprob == pytest.approx(math.log(p[drawn.token] / mass[size - 1]), abs=1e-5)
    # The inverse transform itself, written plainly.
    place = min(int(np.searchsorted(mass, uniform(seed, 0) * mass[size - 1], side="right")), size - 1)
    assert abs(int(np.flatnonzero(order == drawn.token)[0]) - place) <= 1


@pytest.mark.parametrize("number", [0.0, 0.3, 0.999999, 1 - 2**-53])
@pytest.mark.parametrize("top_p", [0.0, 0.5, 1.0, 2.0])
def test_equal_tokens_go_by_id_and_masked_ones_are_never_picked(number, top_p):
    p = np.array([0, 0.25, 0.125, 0.25, 0, 0.125, 0.25, 0], dtype=np.float32)
    order = [1, 3, 6, 2, 5]
    kept = order[: max(1, math.ceil(min(top_p, 1.0) / 0.25))] if top_p <= 0.75 else order
    mass = np.cumsum(p[kept])
    token, logprob = pick(p, top_p, number)
    assert token == kept[min(int(np.searchsorted(mass, number * mass[-1], side="right")), len(kept) - 1)]
    assert logprob == pytest.approx(math.log(p[token] / mass[-1]), abs=1e-6)


def test_frequencies_follow_the_distribution():
    row = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    draws = [draw(row, sequence(Sampling(9, 1.0, 0.9, seed), 3), banned=[])[0].token for seed in range(2000)]
    shares = np.bincount(draws, minlength=4) / len(draws)
    assert shares[3] == 0
    assert np.allclose(shares[:3], np.array([0.5, 0.3, 0.15]) / 0.95, atol=0.04)


def test_a_draw_depends_on_seed_and_position_only():
    assert uniform(1, 2) == uniform(1, 2)
    assert len({uniform(s, p) for s in range(50) for p in range(50)}) == 2500
    row = logits(5)
    drawn = [draw(row, sequence(Sampling(9, seed=s), p))[0].token for s in range(6) for p in range(6)]
    assert len(set(drawn)) > 5
    assert drawn == [draw(row, sequence(Sampling(30, seed=s), p))[0].token for s in range(6) for p in range(6)]


@given(st.integers(0, 1000), st.integers(2, 9))
def test_a_row_does_not_depend_on_the_others(seed, count):
    rows = logits(seed, count, size=701)
    kinds = [
        {"temperature": 0},
        {},
        {"temperature": 1.0, "top_p": 1.0},
        {"raw_logprobs": True, "top_logprobs": 3},
        {"ignore_eos": True},
    ]
    asked = [sequence(Sampling(9, seed=seed + i, **kinds[(seed + i) % 5]), i) for i in range(count)]
    together = draw(rows, *asked)
    assert together == [draw(rows[i : i + 1], asked[i])[0] for i in range(count)]
    assert together == draw(rows.flip(0), *asked[::-1])[::-1]


def test_greedy_takes_the_largest_allowed_with_logprob_zero():
    row = logits(1)
    row[0, BANNED[1]] = row[0, EOS] = 100.0
    first = draw(row, sequence(Sampling(9, temperature=0)))[0]
    assert (first.token, first.logprob) == (EOS, 0.0)
    second = draw(row, sequence(Sampling(9, temperature=0, ignore_eos=True, seed=4), 5))[0]
    row[0, [*BANNED, EOS]] = -math.inf
    assert (second.token, second.logprob, second.raw_logprob, second.top) == (int(row.argmax()), 0.0, None, ())


@pytest.mark.parametrize("temperature", [0.0, 0.4, 2.0])
def test_raw_logprobs_and_alternatives_are_of_the_model_alone(temperature):
    row = logits(3)
    row[0, BANNED] = 9.0
    own = torch.log_softmax(row[0], -1)
    drawn = draw(row, sequence(Sampling(9, temperature, 0.5, 1, raw_logprobs=True, top_logprobs=4)))[0]
    assert drawn.token not in BANNED
    assert drawn.raw_logprob == pytest.approx(float(own[drawn.token]), abs=1e-6)
    assert [one.token for one in drawn.top] == own.argsort(descending=True, stable=True)[:4].tolist()
    assert [one.logprob for one in drawn.top] == pytest.approx(own.sort(descending=True).values[:4].tolist(), abs=1e-6)
    assert draw(row, sequence(Sampling(9, temperature, 0.5, 1, top_logprobs=2)))[0].raw_logprob is None


def test_rounding_rarely_tips_a_draw():
    """The bound that the module states: noise of 1e-4 on logits of 400 tokens tips fewer than 2 draws in 1000."""
    rows = logits(11, 4000, size=400)
    noise = logits(12, 4000, size=400, sharp=1e-4)
    asked = [sequence(Sampling(9, 0.8, 0.95, seed=i), i % 7) for i in range(4000)]
    flips = sum(a.token != b.token for a, b in zip(draw(rows, *asked), draw(rows + noise, *asked), strict=True))
    assert flips < 8


def test_a_grammar_masks_its_row_only_and_says_where_the_reply_ends(tokenizer: ChatTokenizer):
    rows = logits(7, 2, size=tokenizer.vocab_size + 40)
    rows[:, EOS] = 50.0
    bound = sequence(Sampling(9, ignore_eos=True), matcher=Constraint(tokenizer.constraint, 'start: "yes" | "no"'))
    drawn = draw(rows, bound, sequence(Sampling(9)))
    assert tokenizer.decode([drawn[0].token])[0] in "yn"
    assert drawn[1].token == EOS
    ended = sequence(Sampling(9, ignore_eos=True), matcher=Constraint(tokenizer.constraint, 'start: ""'))
    assert draw(rows[:1], ended)[0].token == EOS
