"""The inner loops of the merge methods: in C where `pipelines.merge.native` has a library, else in numpy, same bits.

Called by `pipelines.merge.methods`. Magnitudes are compared by their bits: for float32 without the sign bit, the order
of the numbers is the order of the bits as integers. The k-th largest of n is found in two counts of 65536 (upper, then
lower 16 bits), so that no tensor is ever sorted or held whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.merge import native
from pipelines.merge.dtypes import Floats

Pass = Callable[[], Iterator[Sequence[Floats]]]
"""Starts reading several arrays side by side, chunk by chunk."""
Counts = npt.NDArray[np.int64]

BUCKETS = 1 << 16
SIGN = np.uint32(0x7FFFFFFF)
"""Mask of all bits but the sign."""


def _magnitude_bits(values: Floats) -> npt.NDArray[np.uint32]:
    return values.view(np.uint32) & SIGN


def numpy_histogram(values: Floats, base: Floats | None, counts: Counts, bucket: int) -> None:
    """As `histogram`."""
    bits = _magnitude_bits(values if base is None else values - base)
    upper = bits >> np.uint32(16)
    if bucket < 0:
        counts += np.bincount(upper, minlength=BUCKETS)
        return
    counts += np.bincount(bits[upper == bucket] & np.uint32(0xFFFF), minlength=BUCKETS)


def numpy_keep_top(delta: Floats, threshold_bits: int, equal_left: int) -> int:
    """As `keep_top`."""
    bits = _magnitude_bits(delta)
    equal = np.flatnonzero(bits == threshold_bits)
    delta[bits < threshold_bits] = 0
    delta[equal[equal_left:]] = 0
    return max(0, equal_left - equal.size)


def numpy_weighted_sum_f32(arrays: Sequence[Floats], weights: Sequence[float], out: Floats) -> None:
    """As `weighted_sum_f32`."""
    scratch = np.empty_like(out)
    np.multiply(arrays[0], np.float32(weights[0]), out=out)
    for array, weight in zip(arrays[1:], weights[1:], strict=True):
        np.multiply(array, np.float32(weight), out=scratch)
        np.add(out, scratch, out=out)


def numpy_ties_sum(
    deltas: Sequence[Floats], weights: Sequence[float], base: Floats, scale: float, normalize: bool, out: Floats
) -> None:
    """As `ties_sum`."""
    total = np.zeros_like(out)
    for delta, weight in zip(deltas, weights, strict=True):
        total += delta * np.float32(weight)
    positive = total >= 0
    agreed = np.zeros_like(out)
    divisor = np.zeros_like(out)
    for delta, weight in zip(deltas, weights, strict=True):
        weighted = delta * np.float32(weight)
        agrees = np.where(positive, weighted > 0, weighted < 0)
        agreed += np.where(agrees, weighted, np.float32(0))
        divisor += np.where(agrees, np.float32(weight), np.float32(0))
    if normalize:
        divisor[divisor == 0] = 1
        agreed /= divisor
    agreed *= np.float32(scale)
    np.add(base, agreed, out=out)


def histogram(values: Floats, base: Floats | None, counts: Counts, bucket: int) -> None:
    """Count the magnitudes |values - base|, [n], into `counts`, int64 [65536], which it adds to.

    `bucket` -1: by the upper 16 of their bits. Else by the lower 16, those whose upper 16 are `bucket`.
    """
    (native.histogram if native.library() else numpy_histogram)(values, base, counts, bucket)


def keep_top(delta: Floats, threshold_bits: int, equal_left: int) -> int:
    """Zero, in place, the magnitudes below a threshold, and those that equal it but for the first `equal_left`.

    Gives how many equal ones may still stay: it is carried from chunk to chunk.
    """
    return (native.keep_top if native.library() else numpy_keep_top)(delta, threshold_bits, equal_left)


def weighted_sum_f32(arrays: Sequence[Floats], weights: Sequence[float], out: Floats) -> None:
    """out = arrays[0] * weights[0] + arrays[1] * weights[1] + ..., from the left, in float32."""
    (native.weighted_sum_f32 if native.library() else numpy_weighted_sum_f32)(arrays, weights, out)


def ties_sum(
    deltas: Sequence[Floats], weights: Sequence[float], base: Floats, scale: float, normalize: bool, out: Floats
) -> None:
    """out = base + scale * the sum of those weighted deltas that have the sign of the sum of all (0 is positive).

    `normalize` divides by the sum of their weights.
    """
    (native.ties_sum if native.library() else numpy_ties_sum)(deltas, weights, base, scale, normalize, out)


@dataclass(frozen=True)
class Cut:
    """An array's largest magnitudes: those above `bits`, and of those that equal it the first `equal` by index."""

    bits: int
    equal: int

    def keeper(self) -> Callable[[Floats], None]:
        """Zeroes all others, in place; to be given the chunks of one pass in order."""
        left = self.equal

        def keep(values: Floats) -> None:
            nonlocal left
            left = keep_top(values, self.bits, left)

        return keep


NOTHING = Cut(0x7FFFFFFF, 0)
"""Above all numbers."""


def largest(arrays: Pass, keep: Sequence[int]) -> list[Cut]:
    """Of array i the `keep[i]` largest magnitudes, of equal ones the first: a stable sort's, in two passes."""
    if not any(keep):
        return [NOTHING] * len(keep)
    upper = _counted(arrays, [-1 if k else None for k in keep])
    places = [_locate(counts, k) if k else None for counts, k in zip(upper, keep, strict=True)]
    lower = _counted(arrays, [place[0] if place else None for place in places])
    cuts = []
    for k, place, counts in zip(keep, places, lower, strict=True):
        if place is None:
            cuts.append(NOTHING)
            continue
        bits, above = _locate(counts, k - place[1])
        cuts.append(Cut(place[0] << 16 | bits, k - place[1] - above))
    return cuts


def _counted(arrays: Pass, buckets: Sequence[int | None]) -> list[Counts]:
    counts = [np.zeros(BUCKETS, dtype=np.int64) for _ in buckets]
    for chunk in arrays():
        for values, count, bucket in zip(chunk, counts, buckets, strict=True):
            if bucket is not None:
                histogram(values, None, count, bucket)
    return counts


def _locate(counts: Counts, rank: int) -> tuple[int, int]:
    """The bucket of the `rank`-th from above (the first is 1), and how many are in the buckets above it."""
    from_above = np.cumsum(counts[::-1])
    position = int(np.searchsorted(from_above, rank))
    return BUCKETS - 1 - position, int(from_above[position - 1]) if position else 0
