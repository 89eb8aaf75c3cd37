"""The float types of checkpoints, to float32 and back, without torch. Called by `pipelines.merge.chunks` and `.plan`.

numpy has no bfloat16: it is the upper half of a float32, kept as uint16.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Dtype = Literal["F32", "F16", "BF16"]
NAMES: dict[str, Dtype] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""From the recipe's names to those of safetensors."""


@dataclass(frozen=True)
class FloatType:
    """How a type is stored, and the magnitude from which a float32 no longer rounds to a finite value of it."""

    storage: type[np.generic]
    overflow: float

    @property
    def itemsize(self) -> int:
        """Bytes per value."""
        return np.dtype(self.storage).itemsize


FLOATS: dict[str, FloatType] = {
    "F32": FloatType(np.float32, float("inf")),
    "F16": FloatType(np.float16, 65520.0),
    "BF16": FloatType(np.uint16, float(np.array(0x7F7F8000, dtype=np.uint32).view(np.float32))),
}


def widen(raw: npt.NDArray[np.uint8], dtype: str, out: Floats) -> None:
    """Stored bytes as float32 into `out`, exactly. `out` may hold anything."""
    if dtype == "BF16":
        bits = out.view(np.uint32)
        bits[:] = raw.view(np.uint16)
        np.left_shift(bits, 16, out=bits)
    else:
        out[:] = raw.view(FLOATS[dtype].storage)


def narrow(values: Floats, dtype: str, out: npt.NDArray[np.uint8], scratch: npt.NDArray[np.uint32]) -> None:
    """float32 as stored bytes into `out`, rounded to nearest, ties to even. `values` must not be NaN."""
    if dtype == "BF16":
        bits = values.view(np.uint32)
        # bits + 0x7FFF + (lowest bit kept), then the upper half: carries round up, ties go to the even neighbour.
        np.right_shift(bits, 16, out=scratch)
        np.bitwise_and(scratch, 1, out=scratch)
        np.add(scratch, 0x7FFF, out=scratch)
        np.add(scratch, bits, out=scratch)
        np.right_shift(scratch, 16, out=scratch)
        out.view(np.uint16)[:] = scratch
    else:
        out.view(FLOATS[dtype].storage)[:] = values


def is_finite_in(values: Floats, dtype: str) -> bool:
    """Whether every value is a finite number of the type once rounded."""
    # max and min are NaN when any value is, and every comparison with NaN is false.
    limit = FLOATS[dtype].overflow
    return bool(values.max() < limit and values.min() > -limit)
