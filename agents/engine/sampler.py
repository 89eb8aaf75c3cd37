"""From logits to tokens. Called by `runner` once a step; imports torch.

A draw is a function of the request's seed, the position in the reply and the distribution, of nothing else: the uniform
number is a hash of seed and position, and rows are computed one by one. So the batch around a request does not matter,
except where floating point does: linear layers over other row counts may sum in another order, which moves logits by
about 1e-4. That tips draws that fall on the border between two tokens. Noise of 1e-4 on SmolLM2's logits tipped 0.2% of
the draws at temperature 0.8 and top-p 0.95, and 0.6% at 1 and 1, where the many tokens of the tail change places;
where tokens are few (a vocabulary of 400), fewer than 0.2%, which a test holds.

Logprobs are natural logs under the distribution sampled from: masks, temperature and top-p applied. Greedy decoding
(temperature 0) and tokens forced by a grammar leave no choice: 0.0. Raw ones and alternatives are of the model's own
distribution: temperature 1, no masks, no top-p.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from agents.engine.base import Alternative, Sampling
from agents.engine.grammar import Constraint
from agents.engine.sequence import Sequence
from schemas.ids import derive_seed

_CUTOFFS = (1e-2, 1e-4, 0.0)
"""Shares of the largest probability below which tokens are first left out of account; exact all the same."""
_ATTEMPTS = 8
"""Draws of one token that a grammar may refuse before the way to its end is taken."""
_BIASES = np.where(np.arange(256)[:, None] >> np.arange(8) & 1, np.float32(0), np.float32(-math.inf))
"""What a byte of a grammar's mask adds to the logits of eight ids: 20 times as fast as a mask of booleans."""


@dataclass(frozen=True)
class Draw:
    """One sampled token and its log probability; under the model's own distribution if asked for: the same and the most
    probable tokens."""

    token: int
    logprob: float
    raw_logprob: float | None = None
    top: tuple[Alternative, ...] = ()


def sample(logits: torch.Tensor, sequences: list[Sequence], banned: list[int], eos_id: int) -> list[Draw]:
    """The next token of each sequence from its row of `logits` [rows, vocab] fp32, which is overwritten.

    `banned` ids are never sampled. `ignore_eos` bans `eos_id` as well, except under a grammar, which alone says where
    its reply may end.
    """
    logits = logits.cpu().contiguous()
    raw = {row: logits[row].clone() for row, one in enumerate(sequences) if _asks_for_raw(one.sampling)}
    logits.index_fill_(1, torch.tensor(banned, dtype=torch.long), -math.inf)
    rows: NDArray[np.float32] = logits.numpy()
    draws = []
    for row, sequence in enumerate(sequences):
        token, logprob = _token(rows[row], sequence, eos_id)
        own, top = _own(raw[row], token, sequence.sampling) if row in raw else (None, ())
        draws.append(Draw(token, logprob, own, top))
    return draws


def _token(logits: NDArray[np.float32], sequence: Sequence, eos_id: int) -> tuple[int, float]:
    """Token and logprob from one row, which is overwritten."""
    position, sampling = len(sequence.ids) - sequence.prompt, sequence.sampling
    constraint = sequence.matcher
    if not isinstance(constraint, Constraint):
        if sampling.ignore_eos:
            logits[eos_id] = -math.inf
        return _draw(logits, sampling, position)
    _allow(logits, constraint.allowed)
    for attempt in range(_ATTEMPTS):
        # Drawing again without what was refused samples from what would not be. The logprob is of the last draw.
        token, logprob = _draw(logits, sampling, position, attempt)
        if constraint.fits(token, sequence.limit - position - 1):
            return token, logprob
        logits[token] = -math.inf
        if logits.max() == -math.inf:
            break
    way = constraint.way_out()
    return (way[0], 0.0) if way else (token, logprob)


def uniform(seed: int, position: int, attempt: int = 0) -> float:
    """A number in [0, 1) for the draw at `position` of a reply; `attempt`: how often it was drawn before, in vain."""
    again = (attempt,) if attempt else ()
    return (derive_seed("draw", seed, position, *again) >> 10) / 2**53


def _allow(logits: NDArray[np.float32], allowed: NDArray[np.uint8]) -> None:
    """Set a row to minus infinity except where `allowed` has a bit, lowest first."""
    biases: NDArray[np.float32] = np.empty((len(allowed), 8), np.float32)
    np.take(_BIASES, allowed, axis=0, out=biases, mode="clip")
    known = min(len(logits), biases.size)
    logits[:known] += biases.reshape(-1)[:known]
    logits[known:] = -math.inf


def _draw(logits: NDArray[np.float32], sampling: Sampling, position: int, attempt: int = 0) -> tuple[int, float]:
    """Token and logprob from one masked row."""
    if sampling.temperature == 0:
        return int(logits.argmax()), 0.0
    scaled = torch.from_numpy(logits) / sampling.temperature
    probabilities: NDArray[np.float32] = torch.softmax(scaled, dim=-1).numpy()
    return pick(probabilities, sampling.top_p, uniform(sampling.seed, position, attempt))


def pick(probabilities: NDArray[np.float32], top_p: float, number: float) -> tuple[int, float]:
    """The token at share `number` of the nucleus (Holtzman et al. 2020), most probable first, and its logprob there.

    The nucleus is the fewest most probable tokens whose mass reaches `top_p`, all of them at 1. Equal ones: lower id
    first.
    """
    largest = probabilities.max()
    for cutoff in _CUTOFFS:
        # `>` at cutoff 0 leaves masked tokens out: they never get a share, whatever rounding does to the mass.
        values = probabilities[np.flatnonzero(probabilities > cutoff * largest)]
        if values.sum(dtype=np.float64) > (top_p if top_p < 1 else number):
            break
    values = np.sort(values)[::-1]  # values alone sort many times faster than ids by their values
    mass = values.cumsum(dtype=np.float64)
    whole = float(mass[min(int(mass.searchsorted(top_p)), len(mass) - 1)]) if top_p < 1 else 1.0
    place = min(int(mass.searchsorted(number * whole, side="right")), len(mass) - 1)
    value = values[place]
    equal_before = place - int(np.count_nonzero(values > value))
    token = int(np.flatnonzero(probabilities == value)[equal_before])
    return token, min(0.0, math.log(float(value) / whole))


def _asks_for_raw(sampling: Sampling) -> bool:
    return sampling.raw_logprobs or sampling.top_logprobs > 0


def _own(logits: torch.Tensor, token: int, sampling: Sampling) -> tuple[float | None, tuple[Alternative, ...]]:
    """What the model alone thinks of `token`, and its `top_logprobs` most probable ones; equal ones: lower id first."""
    logprobs: NDArray[np.float32] = torch.log_softmax(logits, dim=-1).numpy()
    count = min(sampling.top_logprobs, len(logprobs))
    top: tuple[Alternative, ...] = ()
    if count:
        ids = np.flatnonzero(logprobs >= np.partition(logprobs, -count)[-count])
        ids = ids[np.argsort(-logprobs[ids], kind="stable")][:count]
        top = tuple(Alternative(int(i), float(logprobs[i])) for i in ids)
    return (float(logprobs[token]) if sampling.raw_logprobs else None), top
