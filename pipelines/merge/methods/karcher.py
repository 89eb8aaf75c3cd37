"""karcher: the Riemannian centre of mass of the tensors' directions, times their mean norm.

Gradient descent on the sphere (Karcher, "Riemannian center of mass and mollifier smoothing", 1977; for checkpoints
arXiv:2603.04972): the mean moves along the mean of the tangents that lead to each tensor, until that is shorter than
`tol` or after `max_iter` steps. Tensors with a norm up to `tol` have no direction and are left out.
"""

import numpy as np

from pipelines.merge.methods.base import Combine, Job, MethodSpec
from pipelines.merge.methods.vectors import gram_of, sum_with


def prepare(job: Job) -> Combine:
    """One pass for the inner products; the descent is arithmetic on coordinates."""
    count, tol = len(job.models), job.options["tol"]
    if count == 1:
        return sum_with([1.0])
    products = gram_of(job)
    norms = np.sqrt(np.diag(products))
    valid = np.flatnonzero(norms > tol)
    if not len(valid):
        return sum_with([0.0] * count)
    units = products[np.ix_(valid, valid)] / np.outer(norms[valid], norms[valid])

    def length(vector: np.ndarray) -> float:
        return float(np.sqrt(max(0.0, vector @ units @ vector)))

    mean = np.full(len(valid), 1 / len(valid))
    mean = np.eye(len(valid))[0] if length(mean) < tol else mean / length(mean)
    for _ in range(int(job.options["max_iter"])):
        dots = np.clip(units @ mean, -1, 1)
        angles = np.arccos(dots)
        steps = np.where(angles < tol, 0.0, angles / np.where(angles < tol, 1.0, np.sin(angles))) / len(valid)
        tangent = steps - (steps @ dots) * mean
        size = length(tangent)
        if size < tol:
            break
        mean = np.cos(size) * mean + np.sin(size) * tangent / size
        mean = mean / length(mean)
    result = np.zeros(count)
    result[valid] = mean * norms.mean() / norms[valid]
    return sum_with(result.tolist())


KARCHER = MethodSpec(prepare, "a model", (1, None), {}, {"max_iter": 10.0, "tol": 1e-5})
