"""model_stock: between the base and the average, nearer to the average the better the models agree.

"Model Stock" (Jang et al., 2024, arXiv:2403.19522): t = k c / (1 + (k - 1) c) for k models, where c is the mean cosine
between their task vectors; the result is t mean(x_i) + (1 - t) base. `filter_wise`: t for each row.
"""

import numpy as np

from pipelines.merge.methods.base import Chunk, Combine, Floats, Job, MethodSpec
from pipelines.merge.methods.vectors import gram_of, sum_with, task_vectors

_SINGULAR = 1e-6
"""Below this 1 + (k - 1) c divides by nothing: mergekit's bound."""


def _ratio(products: np.ndarray) -> np.ndarray:
    """t from inner products [..., k, k]; 0 where opposing models leave no estimate.

    A task vector of zeros has no direction: its cosine with any other is 0, an angle of 90 degrees. Small ones have
    one: mergekit's bound on the norms, 1e-6, takes every pair below it for less alike than it is.
    """
    count = products.shape[-1]
    norms = np.sqrt(np.diagonal(products, axis1=-2, axis2=-1))
    first, second = np.triu_indices(count, 1)
    lengths = norms[..., first] * norms[..., second]
    cosines = products[..., first, second] / np.where(lengths == 0, 1, lengths)
    cosine = np.clip(cosines, -1, 1).mean(axis=-1)
    below = 1 + (count - 1) * cosine
    singular = np.abs(below) < _SINGULAR
    return np.where(singular, 0.0, count * cosine / np.where(singular, 1.0, below))


def prepare(job: Job) -> Combine:
    """One pass for the inner products; none when they are taken row by row."""
    count = len(job.models)
    if not job.options["filter_wise"]:
        return sum_with([float(_ratio(gram_of(job))) / count] * count)

    def combine(chunk: Chunk, out: Floats) -> None:
        rows = np.stack([v.reshape(-1, job.row) for v in task_vectors(chunk)], axis=1)
        wide = rows.astype(np.float64)
        t = _ratio(np.einsum("nkd,nld->nkl", wide, wide, optimize=False)).astype(np.float32)
        np.multiply(rows.sum(axis=1) / np.float32(count), t[:, None], out=out.reshape(-1, job.row))
        if chunk.base is not None:
            out += chunk.base

    return combine


MODEL_STOCK = MethodSpec(prepare, "required", (2, None), {}, {"filter_wise": 0.0})
