"""Merge methods run on arrays in memory, in chunks of any number of rows."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipelines.merge.methods import METHODS
from pipelines.merge.methods.base import Chunk, Job

Array = np.ndarray


def merged(
    method: str,
    models: Sequence[Array],
    base: Array | None = None,
    *,
    each: Sequence[Mapping[str, float]] | None = None,
    rows: int = 3,
    seed: int = 0,
    name: str = "w",
    **options: float,
) -> Array:
    """The merge of float32 arrays of one shape; `each`: parameters of each model."""
    spec, shape = METHODS[method], models[0].shape
    width = shape[-1] if shape else 1
    size, step = models[0].size, rows * width

    def chunks() -> Iterator[Chunk]:
        for start in range(0, size, step):
            # Copies: a method may overwrite what it is given.
            parts = [m.reshape(-1)[start : start + step].copy() for m in models]
            yield Chunk(start, tuple(parts), None if base is None else base.reshape(-1)[start : start + step].copy())

    parameters = tuple({**spec.model_parameters, **given} for given in each or [{}] * len(models))
    job = Job(name, shape, parameters, {**spec.options, **options}, seed, base is not None, chunks)
    combine, out = spec.prepare(job), np.full(size, np.nan, dtype=np.float32)
    for chunk in chunks():
        combine(chunk, out[chunk.start : chunk.start + chunk.models[0].size])
    return out.reshape(shape)
