"""nuslerp: slerp of two tensors, or with a base of their task vectors, at t = w_1 / (w_0 + w_1).

Shoemake's arc as in slerp.py. `nuslerp_flatten` (default): one angle a tensor; else one for each row of the last
dimension, or of the first with `nuslerp_row_wise`. Names and meaning are mergekit's.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from pipelines.merge.methods.base import Chunk, Combine, Floats, Job, MethodSpec
from pipelines.merge.methods.slerp import slerp_weights
from pipelines.merge.methods.vectors import BLOCK, blocks, gram_of, sum_with, task_vectors

_PARALLEL = math.sqrt(1 - 1e-12)
"""Above this |cosine|, where sin(a) is below 1e-6, the line: opposite tensors have no arc, and near there float32
rounding, magnified by 1 / sin(a), would be all that comes out."""
Doubles = npt.NDArray[np.float64]


def prepare(job: Job) -> Combine:
    """One pass for the angle, or the angles of columns; those of rows need none."""
    first, second = (model["weight"] for model in job.models)
    t = 0.5 if abs(first + second) < 1e-6 else second / (first + second)
    if job.options["nuslerp_flatten"] or not job.shape:
        products = gram_of(job)
        return sum_with(slerp_weights(t, products[0, 1], (products[0, 0], products[1, 1]), _PARALLEL))
    if job.options["nuslerp_row_wise"] and len(job.shape) > 1:
        if len(job.shape) != 2:
            raise ValueError(f"nuslerp_row_wise takes matrices, not shape {list(job.shape)}")
        columns = np.zeros((3, job.row))
        whole_rows = max(1, BLOCK // max(1, job.row)) * job.row
        for block in blocks((task_vectors(chunk) for chunk in job.chunks()), 2, whole_rows):
            columns += np.stack([(x * y).sum(0) for x, y in _pairs(block, job.row)])
        return _by_weights(job, lambda _: _weights(t, columns)[:, None, :])
    return _by_weights(
        job, lambda vectors: _weights(t, np.stack([(x * y).sum(1) for x, y in _pairs(vectors, job.row)]))[:, :, None]
    )


def _pairs(vectors: Iterable[npt.NDArray[np.floating]], row: int) -> list[tuple[Doubles, Doubles]]:
    a, b = (v.reshape(-1, row).astype(np.float64, copy=False) for v in vectors)
    return [(a, b), (a, a), (b, b)]


def _weights(t: float, products: Doubles) -> Doubles:
    """[2, n] from [3, n] dot products and squared norms."""
    dots, norms = products[0], products[1:]
    return np.array(
        [slerp_weights(t, d, (p, q), _PARALLEL) for d, p, q in zip(dots, *norms, strict=True)], dtype=np.float64
    ).T


def _by_weights(job: Job, weights_of: Callable[[tuple[Floats, ...]], Doubles]) -> Combine:
    def combine(chunk: Chunk, out: Floats) -> None:
        vectors = task_vectors(chunk)
        weights = weights_of(vectors).astype(np.float32)
        a, b = (v.reshape(-1, job.row) for v in vectors)
        out[:] = (weights[0] * a + weights[1] * b).ravel()
        if chunk.base is not None:
            out += chunk.base

    return combine


NUSLERP = MethodSpec(
    prepare, "allowed", (2, 2), {"weight": math.nan}, {"nuslerp_flatten": 1.0, "nuslerp_row_wise": 0.0}
)
