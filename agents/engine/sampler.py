"""From logits to tokens. Called by `runner`; imports torch.

A draw is a function of the request's seed, the position in the reply and the distribution, of nothing else: the uniform
number is a hash of seed and position. So the batch around a request does not matter, except where floating point does:
linear layers over other row counts may sum in another order, which moves logits by about 1e-4 and can, rarely, tip a
draw that falls on the border between two tokens.

Logprobs are natural logs under the distribution sampled from: masks, temperature and top-p applied. Greedy decoding
(temperature 0) and tokens forced by a grammar leave no choice: 0.0.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from agents.engine.base import Sampling
from schemas.ids import derive_seed

_CUTOFFS = (1e-3, 1e-5, 0.0)
"""Shares of the largest probability below which tokens are first left out of the sort; exact all the same."""


@dataclass(frozen=True)
class Draw:
    """One sampled token and its log probability."""

    token: int
    logprob: float


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for the draw at `position` of a reply."""
    return derive_seed("draw", seed, position) / 2**63


def distributions(logits: torch.Tensor, samplings: list[Sampling], masks: torch.Tensor) -> torch.Tensor:
    """Probabilities [rows, vocab] under masks (True: forbidden) and temperature (0 counts as 1). Overwrites logits."""
    temperature = torch.tensor([s.temperature or 1.0 for s in samplings]).unsqueeze(1)
    return torch.softmax(logits.masked_fill_(masks, -math.inf).div_(temperature), dim=-1)


def draw(probabilities: NDArray[np.float32], sampling: Sampling, position: int) -> Draw:
    """A token from one row, by inverse transform over the nucleus (Holtzman et al. 2020), most probable first."""
    if sampling.temperature == 0:
        return Draw(int(probabilities.argmax()), 0.0)
    ids, cumulative = _nucleus(probabilities, sampling.top_p)
    target = uniform(sampling.seed, position) * cumulative[-1]
    index = min(int(np.searchsorted(cumulative, target, side="right")), len(ids) - 1)
    token = int(ids[index])
    return Draw(token, min(0.0, math.log(float(probabilities[token]) / cumulative[-1])))


def _nucleus(probabilities: NDArray[np.float32], top_p: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The fewest most probable ids whose mass reaches `top_p`, and their running mass. Equal ones: lower id first."""
    largest = probabilities.max()
    for cutoff in _CUTOFFS:
        # `>` at cutoff 0 leaves masked tokens out: they never get a share, whatever rounding does to the mass.
        ids = np.flatnonzero(probabilities > cutoff * largest)
        ids = ids[np.argsort(-probabilities[ids], kind="stable")]
        cumulative = np.cumsum(probabilities[ids], dtype=np.float64)
        if cumulative[-1] >= top_p or cutoff == 0.0:
            break
    kept = min(int(np.searchsorted(cumulative, top_p)) + 1, len(ids))
    return ids[:kept], cumulative[:kept]
