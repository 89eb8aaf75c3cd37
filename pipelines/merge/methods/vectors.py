"""Tensors as vectors: their Gram matrix, task vectors and weighted sums. Called by the methods beside it.

The sums are taken in float64 over blocks at fixed places of the tensor, so that their bits depend neither on the chunk
size nor on threads. (BLAS splits its sums by the number of threads.)
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pipelines.merge import selection
from pipelines.merge.methods.base import Chunk, Combine, Floats, Job

Doubles = npt.NDArray[np.float64]

BLOCK = 1 << 14
"""Values of each vector that are multiplied at once: a few stay in a core's cache as float64."""


def task_vectors(chunk: Chunk) -> tuple[Floats, ...]:
    """The models minus the base, float32, in the models' own buffers; the models themselves when there is no base."""
    if chunk.base is not None:
        for model in chunk.models:
            np.subtract(model, chunk.base, out=model)
    return chunk.models


def blocks(parts: Iterable[Sequence[Floats]], vectors: int, size: int) -> Iterator[Doubles]:
    """Vectors that come in parts, each part a list of [n], in pieces [vectors, size] (the last one may be shorter).

    One buffer: a piece is valid until the next one.
    """
    block = np.empty((vectors, size))
    filled = 0
    for part in parts:
        at, length = 0, part[0].size
        while at < length:
            taken = min(size - filled, length - at)
            for i, values in enumerate(part):
                block[i, filled : filled + taken] = values[at : at + taken]
            at, filled = at + taken, filled + taken
            if filled == size:
                yield block
                filled = 0
    if filled:
        yield block[:, :filled]


def gram(parts: Iterable[Sequence[Floats]], vectors: int) -> Doubles:
    """Dot products [vectors, vectors] of vectors that come in parts, each part a list of [n].

    ValueError when one is not finite.
    """
    sums = np.zeros((vectors, vectors))
    scratch = np.empty(BLOCK)
    for block in blocks(parts, vectors, BLOCK):
        product = scratch[: block.shape[1]]
        for i in range(vectors):
            for j in range(i, vectors):
                np.multiply(block[i], block[j], out=product)
                sums[i, j] += product.sum()
    if not np.isfinite(sums).all():
        raise ValueError("a norm is not finite: the tensor has values that are NaN or infinite")
    upper = np.triu(sums, 1)
    return np.asarray(np.diag(np.diag(sums)) + upper + upper.T)


def gram_of(job: Job) -> Doubles:
    """Dot products [models, models] of the task vectors, or of the models when there is no base."""
    return gram((task_vectors(chunk) for chunk in job.chunks()), len(job.models))


def sum_with(weights: Sequence[float]) -> Combine:
    """base + sum(weights[i] * (model[i] - base)), or sum(weights[i] * model[i]) without a base; float32."""

    def combine(chunk: Chunk, out: Floats) -> None:
        selection.weighted_sum_f32(task_vectors(chunk), weights, out)
        if chunk.base is not None:
            np.add(chunk.base, out, out=out)

    return combine


def given_weights(job: Job) -> list[float]:
    """Every model's `weight`. ValueError when one is not finite."""
    weights = [model["weight"] for model in job.models]
    if not all(map(math.isfinite, weights)):
        raise ValueError(f"weights {weights} are not all finite")
    return weights


def shares(weights: Sequence[float]) -> list[float]:
    """The weights divided by their sum. ValueError when that is 0."""
    total = math.fsum(weights)
    if total == 0:
        raise ValueError(f"weights {list(weights)} have no sum other than 0")
    return [weight / total for weight in weights]
