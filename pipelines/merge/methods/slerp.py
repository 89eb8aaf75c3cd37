"""slerp: the arc between two tensors seen as vectors (Shoemake, "Animating rotation with quaternion curves", 1985).

(sin((1 - t) * a) * x_0 + sin(t * a) * x_1) / sin(a), where a is the angle between x_0 and x_1: a weighted sum, whose
weights are found in a first pass. x_0 is the base where there is one, else the first model.
"""

import math
from collections.abc import Iterator

from pipelines.merge import selection
from pipelines.merge.methods.base import Chunk, Combine, Floats, Job, MethodSpec
from pipelines.merge.methods.vectors import gram

PARALLEL = 0.9995
"""Above this |cosine| the arc is as good as a line, and 1 / sin(a) no longer safe: slerp becomes linear."""


def slerp_weights(
    t: float, dot: float, squares: tuple[float, float], parallel: float = PARALLEL
) -> tuple[float, float]:
    """Weights of the two tensors at `t`, from their dot product and squared norms.

    Linear (1 - t, t) when they are parallel or opposite up to `parallel`, and when one is zero: it has no direction.
    (mergekit takes a zero tensor as orthogonal to the other, which then comes out longer than its share.)
    """
    if squares[0] <= 0 or squares[1] <= 0:
        return 1 - t, t
    cosine = dot / math.sqrt(squares[0]) / math.sqrt(squares[1])
    if abs(cosine) > parallel:
        return 1 - t, t
    angle = math.acos(cosine)
    return math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)


def _pair(chunk: Chunk) -> tuple[Floats, ...]:
    return chunk.models if chunk.base is None else (chunk.base, *chunk.models)


def prepare(job: Job) -> Combine:
    """ValueError unless there are two tensors, the base counted, with finite norms."""
    if len(job.models) + job.has_base != 2:
        raise ValueError("slerp merges two models, or the base and one model")

    def parts() -> Iterator[tuple[Floats, ...]]:
        for chunk in job.chunks():
            yield _pair(chunk)

    products = gram(parts(), 2)
    squares = float(products[0, 0]), float(products[1, 1])
    weights = slerp_weights(job.options["t"], float(products[0, 1]), squares)

    def combine(chunk: Chunk, out: Floats) -> None:
        selection.weighted_sum_f32(_pair(chunk), weights, out)

    return combine


SLERP = MethodSpec(prepare, "allowed", (1, 2), {}, {"t": math.nan})
