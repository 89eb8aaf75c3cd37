"""The arithmetic of merging: formulas, and rounding to stored types against torch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.merge.dtypes import FLOATS, is_finite_in, narrow, widen
from pipelines.merge.methods import PARALLEL, linear_weights, products, slerp_weights, weighted_sum

TORCH = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    out = np.empty(len(values) * FLOATS[dtype].itemsize, dtype=np.uint8)
    narrow(values, dtype, out, np.empty(len(values), dtype=np.uint32))
    return out


def by_torch(values: np.ndarray, dtype: str) -> np.ndarray:
    return torch.from_numpy(values.copy()).to(TORCH[dtype]).view(torch.uint8).numpy()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_rounding_is_that_of_torch(dtype: str) -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 200_000, dtype=np.uint32)
    ties = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000
    values = np.concatenate([bits, ties, ties - 1, ties + 1]).view(np.float32)
    values = values[np.isfinite(values)]
    values = values[np.abs(values) < FLOATS[dtype].overflow].copy()
    assert np.array_equal(stored(values, dtype), by_torch(values, dtype))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_widening_is_exact_and_narrowing_gives_back(dtype: str) -> None:
    every = np.arange(2**16, dtype=np.uint16)
    raw = by_torch(torch.randn(5000).numpy(), "F32") if dtype == "F32" else every.view(np.uint8)
    out = np.full(len(raw) // FLOATS[dtype].itemsize, np.nan, dtype=np.float32)
    widen(raw, dtype, out)
    expected = torch.from_numpy(raw.copy()).view(TORCH[dtype]).float().numpy()
    assert np.array_equal(out.view(np.uint32)[np.isfinite(out)], expected.view(np.uint32)[np.isfinite(out)])
    assert np.array_equal(np.isnan(out), np.isnan(expected))
    finite = out[np.isfinite(out)].copy()
    kept = np.repeat(np.isfinite(out), FLOATS[dtype].itemsize)
    assert np.array_equal(stored(finite, dtype), raw[kept])


@pytest.mark.parametrize(
    ("dtype", "fits", "overflows"),
    [("F16", 65519.99, 65520.0), ("BF16", 3.3961e38, 3.3962e38), ("F32", 3.4e38, math.inf)],
)
def test_what_rounds_to_infinity_is_found(dtype: str, fits: float, overflows: float) -> None:
    for sign in (1, -1):
        assert is_finite_in(np.array([0, sign * fits], dtype=np.float32), dtype)
        assert not is_finite_in(np.array([0, sign * overflows], dtype=np.float32), dtype)
        assert np.isfinite(torch.tensor([fits]).to(TORCH[dtype]).float().numpy()).all()
        assert not np.isfinite(torch.tensor([overflows]).to(TORCH[dtype]).float().numpy()).any()
    assert not is_finite_in(np.array([0, math.nan, 1], dtype=np.float32), dtype)


def test_linear_weights_are_normalised() -> None:
    assert linear_weights(4, None) == (0.25,) * 4
    assert linear_weights(3, [1, 1, 2]) == (0.25, 0.25, 0.5)
    for weights in ([1.0], [1.0, -1.0], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]):
        with pytest.raises(ValueError, match="weights"):
            linear_weights(2, weights)


finite = st.floats(-1e3, 1e3, width=32)


@given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=50), st.tuples(finite, finite, finite))
def test_weighted_sum_is_the_plain_float32_one(rows: list[tuple[float, ...]], weights: tuple[float, ...]) -> None:
    arrays = [np.array(column, dtype=np.float32) for column in zip(*rows, strict=True)]
    out, scratch = np.empty_like(arrays[0]), np.empty_like(arrays[0])
    weighted_sum(arrays, weights, out, scratch)
    a, b, c = (torch.from_numpy(array) for array in arrays)
    expected = a * weights[0] + b * weights[1] + c * weights[2]
    assert np.array_equal(out, expected.numpy())


def arc(t: float, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot, *squares = products(a.astype(np.float32), b.astype(np.float32))
    first, second = slerp_weights(t, dot, (squares[0], squares[1]))
    return first * a + second * b


@given(st.floats(0, 1), st.floats(0.1, 3.0))
def test_slerp_turns_at_constant_speed_on_the_unit_circle(t: float, angle: float) -> None:
    a, b = np.array([1.0, 0.0]), np.array([math.cos(angle), math.sin(angle)])
    assert np.allclose(arc(t, a, b), [math.cos(t * angle), math.sin(t * angle)], atol=1e-6)


def test_slerp_is_linear_where_an_arc_is_not_defined() -> None:
    a, zero = np.array([3.0, 4.0]), np.zeros(2)
    for b in (a, 2 * a, -a, zero):
        assert np.allclose(arc(0.25, a, b), 0.75 * a + 0.25 * b)
    assert np.allclose(arc(0.25, zero, a), 0.25 * a)
    assert np.array_equal(arc(0.5, zero, zero), zero)


def test_slerp_ends_are_the_models() -> None:
    assert slerp_weights(0, 0.3, (1.0, 1.0)) == (1.0, 0.0)
    assert slerp_weights(1, 0.3, (1.0, 1.0)) == (0.0, 1.0)


@pytest.mark.parametrize("sign", [1, -1])
def test_around_the_threshold_arc_and_line_agree(sign: int) -> None:
    just_below, just_above = sign * (PARALLEL - 1e-9), sign * (PARALLEL + 1e-9)
    assert slerp_weights(0.3, just_above, (1.0, 1.0)) == (0.7, 0.3)
    if sign > 0:
        assert np.allclose(slerp_weights(0.3, just_below, (1.0, 1.0)), (0.7, 0.3), atol=1e-3)
