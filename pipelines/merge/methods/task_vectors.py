"""Merging of task vectors x_i - base: made sparse each for itself, weighted, mixed, added to the base.

    task_arithmetic  as they are                          Ilharco et al., 2022, arXiv:2212.04089
    ties             largest magnitudes; sign election    Yadav et al., 2023, arXiv:2306.01708
    dare_linear      a random share, rescaled             Yu et al., 2023, arXiv:2311.03099
    dare_ties        the same with sign election
    della            random, larger ones more likely;     Deep et al., 2024, arXiv:2406.11617
                     sign election
    breadcrumbs      neither the largest nor the          Davari and Belilovsky, 2023, arXiv:2312.06795
                     smallest magnitudes

result = base + lambda * sum(w_i d_i), divided by the sum of the weights that took part where `normalize` is set.
(Weights of which none are left, or whose sum is 0, divide by 1, as in mergekit.)

`rescale`: the random methods divide each value that they keep by its own probability of being kept, as their papers do,
so that its expectation is what it was. mergekit multiplies all that is kept of a tensor by one factor, to the L1 norm
that it had. For DARE the two agree in large tensors, where that factor tends to 1 / density. For DELLA they do not: one
factor leaves a value's expectation proportional to its probability, which is larger for larger values; only the L1 norm
of the whole agrees. ties and breadcrumbs drop nothing at random: theirs is that one factor.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pipelines.merge.methods.base import Chunk, Combine, Floats, Job, MethodSpec, Prepare
from pipelines.merge.methods.vectors import BLOCK, blocks, given_weights, task_vectors
from pipelines.merge.selection import largest, ties_sum, weighted_sum_f32

Sparsify = Callable[[int, int, Floats], None]
"""(model, start of the chunk, task vector): makes it sparse in place; the chunks of a pass come in order."""
Start = Callable[[], Sparsify]
"""Of each pass."""
_NO_SUM = 1e-8
"""mergekit's bound on a sum of weights."""


def _parameter(job: Job, name: str) -> list[float]:
    return [model[name] for model in job.models]


def _size(job: Job) -> int:
    return math.prod(job.shape)


def _passes(job: Job) -> Callable[[], Iterator[Sequence[Floats]]]:
    return lambda: (task_vectors(chunk) for chunk in job.chunks())


def _dense(job: Job) -> Start:
    return lambda: lambda model, start, delta: None


def _counts(job: Job) -> list[int]:
    """Values that each model's density keeps: at least one where it is not 0; 0 where nothing is to be found out."""
    return [max(1, int(d * _size(job))) if 0 < d < 1 and _size(job) else 0 for d in _parameter(job, "density")]


def _largest(job: Job) -> Start:
    densities = _parameter(job, "density")
    cuts = largest(_passes(job), _counts(job))

    def start_pass() -> Sparsify:
        keepers = [cut.keeper() for cut in cuts]

        def sparsify(model: int, start: int, delta: Floats) -> None:
            if densities[model] < 1:
                keepers[model](delta)

        return sparsify

    return start_pass


def _middle(job: Job) -> Start:
    """Without the gamma * n largest: what the `density + gamma` share keeps, less what the `gamma` share keeps."""
    densities, keep, size = _parameter(job, "density"), _counts(job), _size(job)
    # Fewer outliers are removed where otherwise too few values would be left for the density.
    top = [min(int(g * size), size - k) if k else 0 for g, k in zip(_parameter(job, "gamma"), keep, strict=True)]
    cuts = largest(_passes(job), [k + t for k, t in zip(keep, top, strict=True)])
    top_cuts = largest(_passes(job), top)

    def start_pass() -> Sparsify:
        keepers, outliers = [cut.keeper() for cut in cuts], [cut.keeper() for cut in top_cuts]

        def sparsify(model: int, start: int, delta: Floats) -> None:
            if densities[model] < 1:
                outlier = delta.copy()
                outliers[model](outlier)
                keepers[model](delta)
                delta -= outlier

        return sparsify

    return start_pass


def _to_former_norm(sparsifier: Callable[[Job], Start]) -> Callable[[Job], Start]:
    """With `rescale` set, what is left times one factor a model and tensor: to the L1 norm from before."""

    def rescaled(job: Job) -> Start:
        start_pass = sparsifier(job)
        if not job.options["rescale"]:
            return start_pass
        first, models = start_pass(), len(job.models)

        def before_and_after() -> Iterator[Sequence[Floats]]:
            for chunk in job.chunks():
                deltas = task_vectors(chunk)
                before = [delta.copy() for delta in deltas]
                for model, delta in enumerate(deltas):
                    first(model, chunk.start, delta)
                yield [*before, *deltas]

        sums = np.zeros(2 * models)
        for block in blocks(before_and_after(), 2 * models, BLOCK):
            sums += [np.abs(row).sum() for row in block]
        factors = [np.float32(b / a if a else 1) for b, a in zip(sums[:models], sums[models:], strict=True)]

        def start_scaled() -> Sparsify:
            sparsify = start_pass()

            def scaled(model: int, start: int, delta: Floats) -> None:
                sparsify(model, start, delta)
                delta *= factors[model]

            return scaled

        return start_scaled

    return rescaled


def uniform(seed: int, name: str, model: int, start: int, count: int) -> Floats:
    """Numbers in [0, 1), float32, that depend on nothing but seed, tensor, model and chunk."""
    key = hashlib.blake2b(repr((seed, name, model, start)).encode(), digest_size=16).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
    return generator.random(count, dtype=np.float32)


def _draw(job: Job, model: int, start: int, delta: Floats, kept: Floats | np.float32) -> None:
    dropped = uniform(job.seed, job.name, model, start, len(delta)) >= kept
    if job.options["rescale"]:
        delta /= kept
    delta[dropped] = 0


def _bernoulli(job: Job) -> Start:
    densities = _parameter(job, "density")

    def sparsify(model: int, start: int, delta: Floats) -> None:
        density = densities[model]
        if density <= 0:
            delta[:] = 0
        elif density < 1:
            _draw(job, model, start, delta, np.float32(density))

    return lambda: sparsify


def _by_rank(job: Job) -> Start:
    densities, spreads = _parameter(job, "density"), _parameter(job, "epsilon")
    for d, e in zip(densities, spreads, strict=True):
        if 0 < d < 1 and not (d - e > 0 and d + e < 1):
            raise ValueError(f"density {d} and epsilon {e}: density - epsilon and density + epsilon must be in (0, 1)")

    def sparsify(model: int, start: int, delta: Floats) -> None:
        density, epsilon = densities[model], spreads[model]
        if density <= 0:
            delta[:] = 0
        elif density < 1:
            rows = np.abs(delta).reshape(-1, job.row)
            order = np.argsort(rows, axis=1, kind="stable")
            ranks = np.empty(rows.shape, dtype=np.float32)
            np.put_along_axis(ranks, order, np.arange(job.row, dtype=np.float32)[None, :], axis=1)
            kept = np.float32(density - epsilon) + ranks / np.float32(max(1, job.row - 1)) * np.float32(2 * epsilon)
            _draw(job, model, start, delta, kept.ravel())

    return lambda: sparsify


def _method(sparsifier: Callable[[Job], Start], *, elect: bool) -> Prepare:
    def prepare(job: Job) -> Combine:
        weights, scale, normalize = given_weights(job), job.options["lambda"], bool(job.options["normalize"])
        total = math.fsum(weights) if normalize else 1.0
        factors = [w * scale / (total if abs(total) >= _NO_SUM else 1) for w in weights]
        sparsify = sparsifier(job)()

        def combine(chunk: Chunk, out: Floats) -> None:
            if chunk.base is None:
                raise ValueError("task vectors need a base model")
            deltas = task_vectors(chunk)
            for model, delta in enumerate(deltas):
                sparsify(model, chunk.start, delta)
            if elect:
                ties_sum(deltas, weights, chunk.base, scale, normalize, out)
            else:
                weighted_sum_f32(deltas, factors, out)
                out += chunk.base

        return combine

    return prepare


def _spec(
    sparsifier: Callable[[Job], Start],
    *,
    elect: bool,
    normalize: bool,
    more: dict[str, float],
    rescale: bool = False,
) -> MethodSpec:
    options = {"lambda": 1.0, "normalize": float(normalize), "rescale": float(rescale)}
    return MethodSpec(_method(sparsifier, elect=elect), "required", (1, None), {"weight": math.nan} | more, options)


_DENSITY = {"density": 1.0}
TASK_ARITHMETIC = _spec(_dense, elect=False, normalize=False, more={})
TIES = _spec(_to_former_norm(_largest), elect=True, normalize=True, more=_DENSITY)
DARE_LINEAR = _spec(_bernoulli, elect=False, normalize=False, more=_DENSITY, rescale=True)
DARE_TIES = _spec(_bernoulli, elect=True, normalize=False, more=_DENSITY, rescale=True)
DELLA = _spec(_by_rank, elect=True, normalize=True, more=_DENSITY | {"epsilon": 0.15}, rescale=True)
BREADCRUMBS = _spec(_to_former_norm(_middle), elect=False, normalize=False, more=_DENSITY | {"gamma": 0.01})
