"""sce: select, calculate, erase (Wan et al., "FuseChat", 2024, arXiv:2408.07990).

Select: the `select_topk` share of the values, of those that vary at all, whose task vectors vary most between models.
Calculate: one weight a model and tensor, its mean squared change. Erase: changes against the sign of their sum. The
rest is averaged.
"""

from collections.abc import Callable, Iterator

import numpy as np

from pipelines.merge.methods.base import Chunk, Combine, Floats, Job, MethodSpec
from pipelines.merge.methods.vectors import gram, task_vectors
from pipelines.merge.selection import NOTHING, Cut, largest, ties_sum

Select = Callable[[Chunk], tuple[Floats, ...]]
"""The task vectors of a chunk, zero where they are not selected; the chunks of a pass come in order."""


def _variance(vectors: tuple[Floats, ...]) -> Floats:
    count = np.float32(len(vectors))
    mean = sum(vectors[1:], start=vectors[0]) / count
    spread = np.zeros_like(vectors[0])
    for vector in vectors:
        spread += np.square(vector - mean)
    return np.asarray(spread / count)


def _variances(job: Job) -> Iterator[list[Floats]]:
    return ([_variance(task_vectors(chunk))] for chunk in job.chunks())


def _cut(job: Job) -> Cut | None:
    """What is selected; None for all."""
    share = job.options["select_topk"]
    if share >= 1:
        return None
    varying = sum(int(np.count_nonzero(spread)) for (spread,) in _variances(job))
    count = int(varying * share) if share > 0 else 0
    return largest(lambda: _variances(job), [count])[0] if count else NOTHING


def _selection(cut: Cut | None) -> Select:
    if cut is None:
        return task_vectors
    keep = cut.keeper()

    def select(chunk: Chunk) -> tuple[Floats, ...]:
        vectors = task_vectors(chunk)
        spread = _variance(vectors)
        keep(spread)
        for vector in vectors:
            vector[spread == 0] = 0  # values that do not vary are never selected
        return vectors

    return select


def prepare(job: Job) -> Combine:
    """Up to four passes: how many vary, the threshold (two), the weights."""
    cut = _cut(job)
    first, count = _selection(cut), len(job.models)
    squares = np.diag(gram((first(chunk) for chunk in job.chunks()), count))
    total = squares.sum()
    # Only where nothing changed: mergekit's bound, a mean of 1e-6, makes small changes count alike.
    weights = (squares / total if total else np.full(count, 1 / count)).tolist()
    select = _selection(cut)

    def combine(chunk: Chunk, out: Floats) -> None:
        vectors = select(chunk)
        if chunk.base is None:
            raise ValueError("sce needs a base model")
        positive = sum(vectors[1:], start=vectors[0]) >= 0
        # Signs are elected unweighted: what is against them goes first, the rest agrees whatever the weights.
        for vector in vectors:
            vector[(vector > 0) != positive] = 0
        ties_sum(vectors, weights, chunk.base, 1.0, True, out)

    return combine


SCE = MethodSpec(prepare, "required", (1, None), {}, {"select_topk": 1.0})
