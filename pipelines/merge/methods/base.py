"""What a merge method is given and what it gives back. Every file beside this one is one method.

A method is a function `prepare(tensor) -> combine`. `prepare` may read the tensor's chunks as often as it needs (to
find norms, angles or thresholds); `combine(chunk, out)` then writes the merged values of one chunk. Both see float32
only, never the whole tensor, and keep no more than a few numbers per model: memory does not grow with the checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Chunk:
    """Consecutive values of one tensor in all models, flat float32 [n]; whole rows of the last dimension.

    `start`: index of the first value in the flattened tensor. `base` is None when the recipe has none; where it is set,
    `models` are the models without the base. The arrays are buffers: valid until the next chunk, and a method may
    overwrite them (inside `combine` as well as in `prepare`).
    """

    start: int
    models: tuple[Floats, ...]
    base: Floats | None


@dataclass(frozen=True)
class Job:
    """One tensor to merge.

    `weights` and so on are resolved for this very tensor: `models[i]` holds the parameters of model i, `options` those
    of the method. `chunks()` starts reading from the first value, each time it is called.
    """

    name: str
    shape: tuple[int, ...]
    models: tuple[Mapping[str, float], ...]
    options: Mapping[str, float]
    seed: int
    has_base: bool
    chunks: Callable[[], Iterator[Chunk]]

    @property
    def row(self) -> int:
        """Values in a row of the last dimension; 1 for a scalar."""
        return self.shape[-1] if self.shape else 1


Combine = Callable[[Chunk, Floats], None]
"""Writes the merged float32 values of a chunk into the second argument, [n]."""
Prepare = Callable[[Job], Combine]


@dataclass(frozen=True)
class MethodSpec:
    """A method as the planner sees it. ValueErrors from `prepare` become MergeErrors that name the tensor.

    `base`: whether a base must or may be given; for "a model" it is one of the models, never a chunk's `base`.
    `models`: fewest and most models (None: no limit), without a chunk's base. `model_parameters` and `options`: what
    may be set, with defaults; NaN means that it must be set.
    """

    prepare: Prepare
    base: Literal["required", "allowed", "a model"]
    models: tuple[int, int | None]
    model_parameters: Mapping[str, float]
    options: Mapping[str, float]
