"""The merge's kernels in C, compiled on first use. Called by `pipelines.merge.run` and `pipelines.merge.selection`.

Speed only: each gives the bits of its numpy twin, so a machine without a compiler merges to the same bytes. Arrays are
contiguous; the raw bytes (uint8) need not be aligned. Callers look at `library()` first: without it the others raise.
"""

import ctypes
import functools
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agents import compiled
from schemas.errors import CannotCompile

log = logging.getLogger(__name__)

Raw = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# No contraction: a fused multiply-add rounds once where numpy rounds twice.
_FLAGS = ("-O3", "-march=native", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Wextra")
_CODES = {"F32": 0, "F16": 1, "BF16": 2}
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_POINTER, _INT, _SIZE, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_ssize_t, ctypes.c_float
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "merge_widen": (None, (_POINTER, _INT, _SIZE, _POINTER)),
    "merge_narrow": (_INT, (_POINTER, _INT, _SIZE, _POINTER)),
    "merge_weighted_sum": (_INT, (_POINTER, _POINTER, _POINTER, _INT, _SIZE, _POINTER, _INT)),
    "merge_weighted_sum_f32": (None, (_POINTER, _POINTER, _INT, _SIZE, _POINTER)),
    "merge_histogram": (None, (_POINTER, _POINTER, _SIZE, _POINTER, _INT)),
    "merge_ties_sum": (None, (_POINTER, _POINTER, _INT, _POINTER, _FLOAT, _INT, _SIZE, _POINTER)),
    "merge_keep_top": (ctypes.c_int64, (_POINTER, _SIZE, ctypes.c_uint32, ctypes.c_int64)),
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None when they cannot be compiled, which a warning says once."""
    sources = Path(__file__).parent / "kernels"
    program = compiled.Program("the merge's kernels", "merge", sources, _FLAGS, machine=compiled.machine())
    try:
        loaded = ctypes.CDLL(str(compiled.build(program, compiled.cache_folder())))
    except (CannotCompile, OSError) as error:
        log.warning("merges run in numpy, several times slower: %s", error)
        return None
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, list(arguments)
    return loaded


def widen(raw: Raw, dtype: str, out: Floats) -> None:
    """Stored values of `dtype` (F32, F16, BF16) as float32 into `out`, exactly. ValueError: sizes differ."""
    _same_size(raw, dtype, out.size)
    _loaded().merge_widen(_address(raw), _CODES[dtype], out.size, _address(out))


def narrow(values: Floats, dtype: str, raw: Raw) -> bool:
    """float32 as stored values of `dtype`, to nearest, ties to even. Whether all are finite once rounded."""
    _same_size(raw, dtype, values.size)
    return bool(_loaded().merge_narrow(_address(values), _CODES[dtype], values.size, _address(raw)))


def weighted_sum(
    sources: Sequence[Raw], dtypes: Sequence[str], weights: Sequence[float], out: Raw, out_dtype: str
) -> bool:
    """`x0 * w0 + x1 * w1 + ...` of stored values, summed from the left in float32, rounded once to `out_dtype`.

    `out` must not overlap a source. Returns whether all are finite once rounded.
    """
    size = out.size // _SIZES[out_dtype]
    for raw, dtype in zip([*sources, out], [*dtypes, out_dtype], strict=True):
        _same_size(raw, dtype, size)
    codes = np.array([_CODES[dtype] for dtype in dtypes], dtype=np.int32)
    pointers, factors = _addresses(sources), _factors(weights, len(sources))
    return bool(
        _loaded().merge_weighted_sum(
            pointers, _address(codes), _address(factors), len(sources), size, _address(out), _CODES[out_dtype]
        )
    )


def weighted_sum_f32(sources: Sequence[Floats], weights: Sequence[float], out: Floats) -> None:
    """`x0 * w0 + x1 * w1 + ...` from the left in float32 into `out`, [n] each; `out` may be one of the sources."""
    _same_lengths(sources, out.size)
    factors = _factors(weights, len(sources))
    _loaded().merge_weighted_sum_f32(_addresses(sources), _address(factors), len(sources), out.size, _address(out))


def histogram(values: Floats, base: Floats | None, counts: npt.NDArray[np.int64], bucket: int) -> None:
    """Count the magnitudes `|values - base|`, [n], by their bits into `counts`, int64 [65536], which it adds to.

    `bucket` -1: by their upper 16 bits. Else by the lower 16 bits, those whose upper 16 bits are `bucket`.
    """
    if counts.size != 65536:
        raise ValueError(f"{counts.size} counters instead of 65536")
    _same_lengths([values] if base is None else [values, base], values.size)
    start = None if base is None else _address(base)
    _loaded().merge_histogram(_address(values), start, values.size, _address(counts), bucket)


def keep_top(delta: Floats, threshold_bits: int, equal_left: int) -> int:
    """Zero the values whose magnitude has less bits than `threshold_bits`, in place; of those that equal it only the
    first `equal_left` stay. Returns how many equal ones may still stay."""
    return int(_loaded().merge_keep_top(_address(delta), delta.size, threshold_bits, equal_left))


def ties_sum(
    deltas: Sequence[Floats], weights: Sequence[float], base: Floats, scale: float, normalize: bool, out: Floats
) -> None:
    """`base + scale * a` into `out`, [n] each: `a` sums those weighted deltas that have the sign of the sum of all,
    divided by the sum of their weights where `normalize` is set. `out` may be one of the deltas."""
    _same_lengths([*deltas, base], out.size)
    factors = _factors(weights, len(deltas))
    _loaded().merge_ties_sum(
        _addresses(deltas), _address(factors), len(deltas), _address(base), scale, normalize, out.size, _address(out)
    )


def _loaded() -> ctypes.CDLL:
    loaded = library()
    if loaded is None:
        raise CannotCompile("the merge's kernels are not there")
    return loaded


def _address(array: npt.NDArray[np.generic]) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("the kernels take contiguous arrays")
    return array.ctypes.data


def _addresses(arrays: Sequence[npt.NDArray[np.generic]]) -> ctypes.Array[ctypes.c_void_p]:
    return (_POINTER * len(arrays))(*map(_address, arrays))


def _factors(weights: Sequence[float], models: int) -> Floats:
    if len(weights) != models:
        raise ValueError(f"{len(weights)} weights for {models} models")
    return np.array(weights, dtype=np.float32)


def _same_size(raw: Raw, dtype: str, values: int) -> None:
    if raw.nbytes != values * _SIZES[dtype]:
        raise ValueError(f"{raw.nbytes} bytes do not hold {values} values of {dtype}")


def _same_lengths(arrays: Sequence[Floats], values: int) -> None:
    for array in arrays:
        if array.size != values or array.dtype != np.float32:
            raise ValueError(f"{array.size} values of {array.dtype} instead of {values} of float32")
