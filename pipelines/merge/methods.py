"""The arithmetic of merging: coefficients of a method, and the weighted sum. Pure functions, float32 in and out.

linear: sum(w_i * x_i), the average of "Model soups" (Wortsman et al., 2022, arXiv:2203.05482) with any weights.
slerp: the arc between two tensors seen as vectors (Shoemake, "Animating rotation with quaternion curves", 1985):
(sin((1 - t) * a) * x_0 + sin(t * a) * x_1) / sin(a), where a is the angle between x_0 and x_1. For given tensors both
are a weighted sum; slerp only finds its weights in a first pass over the data.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

PARALLEL = 0.9995
"""Above this |cosine| the arc is as good as a line, and 1 / sin(a) no longer safe: slerp becomes linear."""


def linear_weights(models: int, weights: Sequence[float] | None) -> tuple[float, ...]:
    """Weights of sum 1; equal ones by default. ValueError when they do not fit."""
    given = [1.0] * models if weights is None else list(weights)
    if len(given) != models:
        raise ValueError(f"{len(given)} weights for {models} models")
    total = math.fsum(given)
    if not all(map(math.isfinite, given)) or not math.isfinite(total) or total == 0:
        raise ValueError(f"weights {given} have no finite sum other than 0")
    return tuple(weight / total for weight in given)


def slerp_weights(t: float, dot: float, squares: tuple[float, float]) -> tuple[float, float]:
    """Weights of the two tensors at `t`, from their dot product and squared norms.

    Linear (1 - t, t) when they are parallel or opposite up to PARALLEL, and when one is zero: it has no direction.
    """
    if squares[0] <= 0 or squares[1] <= 0:
        return 1 - t, t
    cosine = dot / math.sqrt(squares[0]) / math.sqrt(squares[1])
    if abs(cosine) > PARALLEL:
        return 1 - t, t
    angle = math.acos(cosine)
    return math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)


def weighted_sum(arrays: Sequence[Floats], weights: Sequence[float], out: Floats, scratch: Floats) -> None:
    """out = sum(weights[i] * arrays[i]), added in order in float32. `out` and `scratch` have the arrays' shape."""
    np.multiply(arrays[0], np.float32(weights[0]), out=out)
    for array, weight in zip(arrays[1:], weights[1:], strict=True):
        np.multiply(array, np.float32(weight), out=scratch)
        np.add(out, scratch, out=out)


def products(a: Floats, b: Floats) -> tuple[float, float, float]:
    """(a.b, a.a, b.b) in float64, for `slerp_weights`; sums over chunks add up to those of the tensor."""
    # Not `@`: BLAS splits the sum by its number of threads, and the last bit with it.
    first, second = a.astype(np.float64), b.astype(np.float64)
    return float((first * second).sum()), float(np.square(first).sum()), float(np.square(second).sum())
