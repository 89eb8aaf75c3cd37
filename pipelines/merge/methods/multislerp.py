"""multislerp: barycentric interpolation of several tensors on a sphere, with a base of their task vectors.

Unit vectors u_i; their weighted mean m, normalised; r = sum(w_i (u_i - (u_i.m) m)) in the tangent space at m; back on
the sphere by the exponential map, m cos|r| + r sin|r| / |r|; times the weighted mean norm. Defined by mergekit's
method of that name; one step of the Karcher mean (Karcher, 1977) from the normalised mean.
"""

import numpy as np

from pipelines.merge.methods.base import Combine, Job, MethodSpec
from pipelines.merge.methods.vectors import gram_of, sum_with


def prepare(job: Job) -> Combine:
    """One pass for the inner products. ValueError when the weighted mean direction is zero."""
    weights = np.array([model["weight"] for model in job.models])
    if job.options["normalize_weights"]:
        weights = weights / weights.sum()
    if not np.isfinite(weights).all():
        raise ValueError("the weights have no finite sum other than 0")
    if len(weights) == 1:
        return sum_with([1.0])
    products, eps = gram_of(job), job.options["eps"]
    norms = np.sqrt(np.diag(products))
    scale = 1 / (norms + eps)
    cosines = products * np.outer(scale, scale)  # of the unit vectors, in whose coordinates all below is written
    length = np.sqrt(max(0.0, weights @ cosines @ weights))
    if length < eps:
        if len(weights) == 2:
            return sum_with(weights.tolist())
        raise ValueError("the weighted mean direction of the tensors is zero: take other weights")
    mean = weights / length
    dots = cosines @ mean
    tangent = weights - (weights @ dots) * mean
    angle = np.sqrt(max(0.0, tangent @ cosines @ tangent)) + eps
    result = mean * np.cos(angle) + tangent * (np.sin(angle) / angle)
    return sum_with((result * (norms @ weights) * scale).tolist())


MULTISLERP = MethodSpec(
    prepare, "allowed", (1, None), {"weight": float("nan")}, {"normalize_weights": 1.0, "eps": 1e-8}
)
