"""The kernels against numpy, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.merge import native, selection

TYPES = ("F32", "F16", "BF16")
SPECIAL = np.array(
    [0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x33000000, 0x33000001, 0x387FE000, 0x38800000, 0x477FEFFF, 0x477FF000,
     0x3F808000, 0x3F818000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FFFFFFF],
    dtype=np.uint32,
).view(np.float32)  # fmt: skip
pytestmark = [
    pytest.mark.skipif(native.library() is None, reason="no C compiler"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
sizes = st.sampled_from([1, 7, 8, 15, 2047, 2048, 2049, 5001])
seeds = st.integers(0, 2**32 - 1)


def reference_narrow(values, dtype):
    if dtype == "F16":
        return values.astype(np.float16).view(np.uint8)
    if dtype == "F32":
        return values.copy().view(np.uint8)
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).view(np.uint8)


def reference_widen(raw, dtype):
    if dtype == "BF16":
        return (raw.copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.copy().view(np.float16 if dtype == "F16" else np.float32).astype(np.float32)


def floats(size, seed, finite=False):
    """Random bits, so every exponent; with some special values."""
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 2**32, size, dtype=np.uint32).view(np.float32)
    normal = generator.standard_normal(size).astype(np.float32)
    values = np.where(generator.random(size) < 0.5, values, normal)
    values = np.where(generator.random(size) < 0.1, generator.choice(SPECIAL, size), values)
    return np.where(np.isfinite(values), values, np.float32(1)) if finite else values


def unaligned(raw):
    room = np.empty(raw.size + 1, dtype=np.uint8)
    room[1:] = raw
    return room[1:]


def same(got, want):
    """Equal bits; any NaN equals any other."""
    got, want = np.asarray(got), np.asarray(want)
    both = np.isnan(got) & np.isnan(want)
    bits = np.uint32 if got.dtype == np.float32 else np.uint16
    return bool(((got.view(bits) == want.view(bits)) | both).all())


def stored(raw, dtype):
    return reference_widen(raw, dtype)


def test_every_half_value_widens_and_comes_back():
    raw = np.arange(65536, dtype=np.uint16).view(np.uint8)
    for dtype in ("F16", "BF16"):
        values, back = np.empty(65536, np.float32), np.empty_like(raw)
        native.widen(unaligned(raw), dtype, values)
        assert same(values, reference_widen(raw, dtype))
        one_less = np.empty(65535, np.float32)  # odd: the last ones go without vector instructions
        native.widen(raw[2:], dtype, one_less)
        assert same(one_less, values[1:])
        assert not native.narrow(values, dtype, back)
        number = ~np.isnan(values)
        assert (back.view(np.uint16)[number] == raw.view(np.uint16)[number]).all()


@settings(max_examples=60, deadline=None)
@given(size=sizes, seed=seeds, dtype=st.sampled_from(TYPES), finite=st.booleans())
def test_narrow_rounds_as_numpy_does_and_tells_what_is_not_finite(size, seed, dtype, finite):
    values = floats(size, seed, finite)
    want = reference_narrow(values, dtype)
    out = unaligned(np.zeros_like(want))
    told = native.narrow(values, dtype, out)
    number = ~np.isnan(values)
    assert same(stored(out, dtype)[number], stored(want, dtype)[number])
    assert told == bool(np.isfinite(stored(want, dtype)[number]).all() and number.all())


@settings(max_examples=80, deadline=None)
@given(
    size=sizes, seed=seeds, out_dtype=st.sampled_from(TYPES), finite=st.booleans(),
    dtypes=st.lists(st.sampled_from(TYPES), min_size=1, max_size=4),
    weights=st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4),
)  # fmt: skip
def test_weighted_sum_has_the_bits_of_numpy(size, seed, out_dtype, finite, dtypes, weights):
    weights = weights[: len(dtypes)]
    raws = [reference_narrow(floats(size, seed + i, finite), dtype) for i, dtype in enumerate(dtypes)]
    arrays = [reference_widen(raw, dtype) for raw, dtype in zip(raws, dtypes, strict=True)]
    total = arrays[0] * np.float32(weights[0])
    for array, weight in zip(arrays[1:], weights[1:], strict=True):
        total += array * np.float32(weight)
    want = reference_narrow(total, out_dtype)
    out = unaligned(np.zeros_like(want))
    told = native.weighted_sum([unaligned(raw) for raw in raws], dtypes, weights, out, out_dtype)
    number = ~np.isnan(total)
    assert same(stored(out, out_dtype)[number], stored(want, out_dtype)[number])
    assert told == bool(np.isfinite(stored(want, out_dtype)[number]).all() and number.all())


@settings(max_examples=40, deadline=None)
@given(size=sizes, seed=seeds, weights=st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=4))
def test_weighted_sum_of_floats_and_in_place(size, seed, weights):
    arrays = [floats(size, seed + i) for i in range(len(weights))]
    want, out = np.empty(size, np.float32), np.empty(size, np.float32)
    selection.numpy_weighted_sum_f32(arrays, weights, want)
    native.weighted_sum_f32(arrays, weights, out)
    assert same(out, want)
    native.weighted_sum_f32(arrays, weights, arrays[-1])
    assert same(arrays[-1], want)


@settings(max_examples=40, deadline=None)
@given(size=sizes, seed=seeds, with_base=st.booleans())
def test_histogram_counts_upper_then_lower_bits(size, seed, with_base):
    values, base = floats(size, seed, finite=True), floats(size, seed + 1, finite=True) if with_base else None
    upper = np.zeros(65536, np.int64)
    native.histogram(values, base, upper, -1)
    for bucket in (-1, int(upper.argmax()), 3):
        got, want = np.ones(65536, np.int64), np.ones(65536, np.int64)
        native.histogram(values, base, got, bucket)
        selection.numpy_histogram(values, base, want, bucket)
        assert (got == want).all()


@settings(max_examples=60, deadline=None)
@given(size=sizes, seed=seeds, levels=st.integers(1, 9), equal_left=st.integers(0, 3000))
def test_keep_top_keeps_the_first_of_equals(size, seed, levels, equal_left):
    generator = np.random.default_rng(seed)
    values = generator.integers(-levels, levels + 1, size).astype(np.float32)
    threshold = int(np.float32(levels // 2 + 1).view(np.uint32))
    got, want = values.copy(), values.copy()
    assert native.keep_top(got, threshold, equal_left) == selection.numpy_keep_top(want, threshold, equal_left)
    assert same(got, want)


@settings(max_examples=60, deadline=None)
@given(
    size=sizes, seed=seeds, normalize=st.booleans(), scale=st.floats(-2, 2, width=32), sparse=st.booleans(),
    weights=st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=4),
)  # fmt: skip
def test_ties_sum_has_the_bits_of_numpy(size, seed, normalize, scale, sparse, weights):
    deltas = [floats(size, seed + i) for i in range(len(weights))]
    if sparse:
        for i, delta in enumerate(deltas):
            delta[np.random.default_rng(seed + 9 + i).random(size) < 0.7] = 0
    base, want, out = floats(size, seed + 5, finite=True), np.empty(size, np.float32), np.empty(size, np.float32)
    selection.numpy_ties_sum(deltas, weights, base, scale, normalize, want)
    native.ties_sum(deltas, weights, base, scale, normalize, out)
    assert same(out, want)


def test_sizes_that_do_not_fit_are_refused():
    values = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="7 bytes do not hold 4 values of F16"):
        native.widen(np.zeros(7, np.uint8), "F16", values)
    with pytest.raises(ValueError, match="contiguous"):
        native.keep_top(np.zeros(8, np.float32)[::2], 1, 0)
    with pytest.raises(ValueError, match="2 weights for 1 models"):
        native.weighted_sum_f32([values], [1, 2], values.copy())
