"""Every method against the formula of its paper, written plainly in float64 on whole tensors, and by its properties."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from job_factory import Array, merged

from pipelines.merge.methods import METHODS
from pipelines.merge.methods.slerp import PARALLEL, slerp_weights
from pipelines.merge.methods.task_vectors import uniform
from pipelines.merge.selection import largest
from schemas.merge import Method

SHAPE = (23, 17)


def tensors(count: int, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> tuple[Array, list[Array]]:
    """A base and models near it, float32; a few values equal in magnitude."""
    random = np.random.default_rng(seed)
    base = random.standard_normal(shape, dtype=np.float32)
    models = [base + np.round(random.standard_normal(shape) * 0.3, 2).astype(np.float32) for _ in range(count)]
    return base, models


def weights(*values: float) -> list[dict[str, float]]:
    return [{"weight": value} for value in values]


def close(ours: Array, expected: Array) -> None:
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-6)


def deltas(base: Array, models: Sequence[Array]) -> list[Array]:
    return [(m - base).astype(np.float64) for m in models]


def top(values: Array, keep: int) -> Array:
    """The `keep` largest magnitudes by a stable sort, 0 elsewhere."""
    flat = values.reshape(-1)
    out = np.zeros_like(flat)
    chosen = np.argsort(-np.abs(flat), kind="stable")[:keep]
    out[chosen] = flat[chosen]
    return out.reshape(values.shape)


def elected(parts: Sequence[Array], factors: Sequence[float], normalize: bool) -> Array:
    weighted = [p * w for p, w in zip(parts, factors, strict=True)]
    sign = np.where(sum(weighted) >= 0, 1, -1)
    agrees = [np.sign(p) == sign for p in weighted]
    total = sum(np.where(a, p, 0) for a, p in zip(agrees, weighted, strict=True))
    divisor = sum(np.where(a, w, 0) for a, w in zip(agrees, factors, strict=True))
    return total / np.where(divisor == 0, 1, divisor) if normalize else total


def test_all_methods_are_there() -> None:
    assert set(METHODS) == set(Method.__args__)


@pytest.mark.parametrize("normalize", [0, 1])
def test_linear(normalize: int) -> None:
    _, models = tensors(3)
    total = 2.5 if normalize else 1
    close(
        merged("linear", models, each=weights(1, 2, -0.5), normalize=normalize),
        sum(m * (w / total) for m, w in zip(models, (1, 2, -0.5), strict=True)),
    )


def test_weights_without_a_sum() -> None:
    _, models = tensors(2)
    with pytest.raises(ValueError, match="sum other than 0"):
        merged("linear", models, each=weights(1, -1))


def test_passthrough() -> None:
    _, (model,) = tensors(1)
    np.testing.assert_array_equal(merged("passthrough", [model]), model)
    np.testing.assert_array_equal(merged("passthrough", [model], each=[{"scale": 0.5}]), model * np.float32(0.5))


@given(st.floats(0, 1), st.floats(0.05, 3.0))
def test_slerp_of_unit_vectors_stays_on_the_arc(t: float, angle: float) -> None:
    a, b = np.array([1.0, 0]), np.array([np.cos(angle), np.sin(angle)])
    first, second = slerp_weights(t, float(a @ b), (1.0, 1.0))
    if abs(np.cos(angle)) <= PARALLEL:
        np.testing.assert_allclose(first * a + second * b, [np.cos(t * angle), np.sin(t * angle)], atol=1e-9)


def arc(t: float, a: Array, b: Array) -> Array:
    a, b = a.astype(np.float64), b.astype(np.float64)
    angle = np.arccos((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))
    return (np.sin((1 - t) * angle) * a + np.sin(t * angle) * b) / np.sin(angle)


def test_slerp_starts_at_the_base() -> None:
    base, (model, other) = tensors(2)
    close(merged("slerp", [model], base, t=0.3), arc(0.3, base, model))
    close(merged("slerp", [model, other], t=0.3), arc(0.3, model, other))


def test_nuslerp() -> None:
    base, (a, b) = tensors(2)
    close(merged("nuslerp", [a, b], each=weights(3, 1)), arc(0.25, a, b))
    x, y = deltas(base, (a, b))
    close(merged("nuslerp", [a, b], base, each=weights(3, 1)), base + arc(0.25, x, y))
    rows = np.stack([arc(0.25, p, q) for p, q in zip(a, b, strict=True)])
    close(merged("nuslerp", [a, b], each=weights(3, 1), nuslerp_flatten=0), rows)
    columns = np.stack([arc(0.25, p, q) for p, q in zip(a.T, b.T, strict=True)]).T
    close(merged("nuslerp", [a, b], each=weights(3, 1), nuslerp_flatten=0, nuslerp_row_wise=1), columns)


@pytest.mark.parametrize("flatten", [0, 1])
@pytest.mark.parametrize("row_wise", [0, 1])
@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("factor", [-1.0, -0.7, 1.0, 3.0, -1 - 1e-7])
def test_nuslerp_of_parallel_or_opposite_tensors(flatten: int, row_wise: int, with_base: bool, factor: float) -> None:
    """There is no arc, or any: the line."""
    base, (a,) = tensors(1)
    base = base * 0 if with_base else None
    b = (a * np.float32(factor)).astype(np.float32)
    options = {"nuslerp_flatten": flatten, "nuslerp_row_wise": row_wise}
    close(merged("nuslerp", [a, b], base, each=weights(3, 1), **options), 0.75 * a + 0.25 * b)


def test_multislerp() -> None:
    base, models = tensors(3)
    vectors, share = [d.ravel() for d in deltas(base, models)], np.array([1, 2, 1]) / 4
    norms = np.array([np.linalg.norm(v) for v in vectors])
    units = np.stack(vectors) / norms[:, None]
    mean = share @ units
    mean /= np.linalg.norm(mean)
    tangent = share @ (units - (units @ mean)[:, None] * mean)
    size = np.linalg.norm(tangent)
    result = (mean * np.cos(size) + tangent * np.sin(size) / size) * (norms @ share)
    close(merged("multislerp", models, base, each=weights(1, 2, 1)), base + result.reshape(SHAPE))


def test_multislerp_of_opposites() -> None:
    _, (a,) = tensors(1)
    close(merged("multislerp", [a, -a], each=weights(1, 1)), a * 0)
    third = a[::-1].copy()
    with pytest.raises(ValueError, match="direction"):
        merged("multislerp", [a, -a, third * 0], each=weights(1, 1, 0))


def test_karcher_is_where_the_tangents_cancel() -> None:
    _, models = tensors(3)
    models = [m * s for m, s in zip(models, np.float32([1, 2, 0.5]), strict=True)]
    result = merged("karcher", models, max_iter=100, tol=1e-9).astype(np.float64).ravel()
    norms = [np.linalg.norm(m) for m in models]
    assert np.linalg.norm(result) == pytest.approx(np.mean(norms), rel=1e-5)
    mean, tangent = result / np.linalg.norm(result), np.zeros(result.size)
    for model, norm in zip(models, norms, strict=True):
        unit = model.ravel() / norm
        angle = np.arccos(unit @ mean)
        tangent += angle / np.sin(angle) * (unit - (unit @ mean) * mean)
    assert np.linalg.norm(tangent) < 1e-5


def stock(base: Array, models: Sequence[Array]) -> Array:
    vectors = [d.ravel() for d in deltas(base, models)]
    k = len(vectors)
    cosines = [
        vectors[i] @ vectors[j] / np.linalg.norm(vectors[i]) / np.linalg.norm(vectors[j])
        for i in range(k)
        for j in range(i)
    ]
    c = np.mean(cosines)
    t = k * c / (1 + (k - 1) * c)
    return t * np.mean(models, axis=0) + (1 - t) * base


def test_model_stock() -> None:
    base, models = tensors(3)
    models = [m + np.float32(0.2) for m in models]  # so that they agree on something
    close(merged("model_stock", models, base), stock(base, models))
    rows = [stock(base[i], [m[i] for m in models]) for i in range(SHAPE[0])]
    close(merged("model_stock", models, base, filter_wise=1), np.stack(rows))


@pytest.mark.parametrize("normalize", [0, 1])
def test_task_arithmetic(normalize: int) -> None:
    base, models = tensors(3)
    parts, factors = deltas(base, models), (1, 0.5, -0.25)
    total = sum(factors) if normalize else 1
    expected = base + 0.7 * sum(p * w for p, w in zip(parts, factors, strict=True)) / total
    close(
        merged("task_arithmetic", models, base, each=weights(*factors), normalize=normalize, **{"lambda": 0.7}),
        expected,
    )


@pytest.mark.parametrize("method", ["task_arithmetic", "dare_linear", "breadcrumbs", "ties", "dare_ties", "della"])
def test_task_vectors_whose_weights_have_no_sum_are_divided_by_1(method: str) -> None:
    base, models = tensors(3)
    each, parts = weights(0.5, 0.25, -0.75 + 1e-12), deltas(base, models)
    if method in ("ties", "dare_ties", "della"):
        models, each, parts = models[:1], weights(0.0), parts[:1]  # no weight that agrees
    expected = base + sum(p * e["weight"] for p, e in zip(parts, each, strict=True))
    close(merged(method, models, base, each=each, normalize=1), expected)


@pytest.mark.parametrize("method", ["ties", "breadcrumbs"])
def test_rescale_gives_back_the_l1_norm(method: str) -> None:
    base, (model, _) = tensors(2)
    each = [{"weight": 1.0, "density": 0.3}]
    plain, ours = (merged(method, [model], base * 0, each=each, rescale=rescale) for rescale in (0, 1))
    assert np.abs(ours).sum() == pytest.approx(np.abs(model).sum(), rel=1e-5)
    close(ours, plain * (np.abs(model).sum() / np.abs(plain).sum()))


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.2, 0.7, 1.0])
def test_ties(density: float, normalize: int) -> None:
    base, models = tensors(3)
    factors = (1, 0.5, 0.25)
    keep = 0 if density == 0 else max(1, int(density * base.size))
    parts = [top(d, keep) for d in deltas(base, models)]
    each = [{"weight": w, "density": density} for w in factors]
    ours = merged("ties", models, base, each=each, normalize=normalize, **{"lambda": 1.5})
    close(ours, base + 1.5 * elected(parts, factors, bool(normalize)))


def test_breadcrumbs() -> None:
    base, models = tensors(2)
    parts = [
        top(d, int(0.4 * base.size) + int(0.1 * base.size)) - top(d, int(0.1 * base.size)) for d in deltas(base, models)
    ]
    each = [{"weight": 0.5, "density": 0.4, "gamma": 0.1}] * 2
    close(merged("breadcrumbs", models, base, each=each), base + 0.5 * sum(parts))


def test_sce() -> None:
    base, models = tensors(3)
    parts = deltas(base, models)
    spread = np.var(np.stack([p.astype(np.float32) for p in parts]), axis=0)
    chosen = top(spread, int(np.count_nonzero(spread) * 0.3)) > 0
    parts = [np.where(chosen, p, 0) for p in parts]
    squares = np.array([np.square(p).mean() for p in parts])
    factors = squares / squares.sum()
    sign = np.where(sum(parts) >= 0, 1, -1)
    agrees = [np.sign(p) == sign for p in parts]
    total = sum(np.where(a, p * w, 0) for a, p, w in zip(agrees, parts, factors, strict=True))
    divisor = sum(np.where(a, w, 0) for a, w in zip(agrees, factors, strict=True))
    expected = base + total / np.where(divisor == 0, 1, divisor)
    ours = merged("sce", models, base, select_topk=0.3)
    # Two variances that round to neighbours may change places at the threshold.
    assert np.isclose(ours, expected, rtol=2e-5, atol=2e-6).mean() > 0.99
    close(merged("sce", models, base, select_topk=0), base)


ABSOLUTE = ("karcher", "multislerp", "ram")  # tol, eps and epsilon are sizes


@pytest.mark.parametrize("size", [2.0**-30, 2.0**20])
@pytest.mark.parametrize(
    ("method", "options"),
    [(m, {}) for m in sorted(set(METHODS) - {*ABSOLUTE, "passthrough"})]
    + [("model_stock", {"filter_wise": 1}), ("sce", {"select_topk": 0.4}), ("nuslerp", {"nuslerp_flatten": 0})],
)
def test_no_size_is_too_small_or_large(method: str, options: dict[str, float], size: float) -> None:
    """Powers of two are exact: the merge of checkpoints that much smaller is that much smaller."""
    base, models = tensors(3 if METHODS[method].models[1] is None else 2)
    scale = np.float32(size)
    given_ = arguments(method, models, base) | options
    small = given_ | {"base": None if given_["base"] is None else given_["base"] * scale}
    ours = merged(method, [m * scale for m in models], **small)
    np.testing.assert_array_equal(ours, merged(method, models, **given_) * scale)


def test_model_stock_of_a_model_that_learned_nothing() -> None:
    """Its angle to the others is 90 degrees."""
    base, models = tensors(2)
    models[1] = models[0].copy()
    cosine = 1 / 3
    t = 3 * cosine / (1 + 2 * cosine)
    close(merged("model_stock", [*models, base.copy()], base), t * np.mean([*models, base], axis=0) + (1 - t) * base)


def test_ram() -> None:
    base, _ = tensors(0)
    models = [base.copy(), base.copy()]
    models[0][0, 0] += 1  # only one changed it: whole
    models[0][0, 1] += 1  # both did: the mean
    models[1][0, 1] += 3
    expected = base.copy()
    expected[0, 0] += 1
    expected[0, 1] += 2
    close(merged("ram", models, base), expected)


@pytest.mark.parametrize("method", ["dare_linear", "dare_ties", "della"])
def test_random_methods_keep_their_share_and_their_mean(method: str) -> None:
    base = np.zeros((300, 101), dtype=np.float32)
    model = np.random.default_rng(1).standard_normal(base.shape).astype(np.float32)
    each = [{"weight": 1.0, "density": 0.4}]
    result = merged(method, [model], base, each=each, rows=7)
    kept = result != 0
    assert kept.mean() == pytest.approx(0.4, abs=4 * np.sqrt(0.24 / base.size))
    assert (result[kept] / model[kept]).min() > 1
    assert np.abs(result).mean() == pytest.approx(np.abs(model).mean(), rel=0.03)
    np.testing.assert_array_equal(result, merged(method, [model], base, each=each, rows=7))
    for other in ({"seed": 1}, {"name": "v"}):
        assert (merged(method, [model], base, each=each, rows=7, **other) != 0).mean() != kept.mean()
    plain = merged(method, [model], base, each=each, rows=7, rescale=0)
    np.testing.assert_allclose(plain[kept], model[kept])


def test_della_prefers_large_ones() -> None:
    base = np.zeros((400, 100), dtype=np.float32)
    model = np.tile(np.arange(1, 101, dtype=np.float32), (400, 1))
    each = [{"weight": 1.0, "density": 0.5, "epsilon": 0.3}]
    kept = (merged("della", [model], base, each=each) != 0).mean(axis=0)
    assert kept[:10].mean() == pytest.approx(0.2 + 0.6 * 4.5 / 99, abs=0.03)
    assert kept[-10:].mean() == pytest.approx(0.8 - 0.6 * 4.5 / 99, abs=0.03)
    with pytest.raises(ValueError, match="epsilon"):
        merged("della", [model], base, each=[{"weight": 1.0, "density": 0.9, "epsilon": 0.3}])


def test_draws_depend_on_their_key_alone() -> None:
    first = uniform(0, "w", 1, 128, 1000)
    np.testing.assert_array_equal(first, uniform(0, "w", 1, 128, 1000))
    others = [uniform(1, "w", 1, 128, 1000), uniform(0, "v", 1, 128, 1000), uniform(0, "w", 0, 128, 1000)]
    assert all(np.abs(np.corrcoef(first, other)[0, 1]) < 0.15 for other in [*others, uniform(0, "w", 1, 256, 1000)])


DETERMINISTIC = sorted(set(METHODS) - {"dare_linear", "dare_ties", "della", "passthrough"})
NEEDS_BASE = [m for m in DETERMINISTIC if METHODS[m].base == "required"]


def arguments(method: str, models: Sequence[Array], base: Array) -> dict:
    spec = METHODS[method]
    own = {"weight": 1.0, "density": 0.6, "gamma": 0.1}
    each = [{k: v for k, v in own.items() if k in spec.model_parameters}] * len(models)
    return {"each": each, "base": base if spec.base == "required" else None} | ({"t": 0.4} if method == "slerp" else {})


OPTIONS: list[tuple[str, dict[str, float]]] = [
    ("model_stock", {"filter_wise": 1}),
    ("nuslerp", {"nuslerp_flatten": 0}),
    ("nuslerp", {"nuslerp_flatten": 0, "nuslerp_row_wise": 1}),
    ("sce", {"select_topk": 0.4}),
    ("ties", {"rescale": 1}),
    ("breadcrumbs", {"rescale": 1}),
]


@pytest.mark.parametrize(("method", "options"), [(m, {}) for m in DETERMINISTIC] + OPTIONS)
@pytest.mark.parametrize("shape", [SHAPE, (700, 30), (7, 3000), (1, 9), (9, 1), (5,), (2, 3, 4), ()])
def test_chunks_do_not_show(method: str, options: dict[str, float], shape: tuple[int, ...]) -> None:
    if "nuslerp_row_wise" in options and len(shape) > 2:
        pytest.skip("refused")
    base, models = tensors(2, shape=shape)
    given_ = arguments(method, models, base) | options
    results = [merged(method, models, rows=rows, **given_) for rows in (1, 2, 5, 1000)]
    assert results[0].shape == shape
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("options", [{}, {"nuslerp_flatten": 0}, {"nuslerp_flatten": 0, "nuslerp_row_wise": 1}])
def test_chunks_do_not_show_where_an_arc_magnifies_them(options: dict[str, float]) -> None:
    """Nearly opposite: the last bit of a sum is a thousandth of a weight."""
    _, (a, noise) = tensors(2, shape=(700, 30))
    b = -a + noise * np.float32(1e-5)
    results = [merged("nuslerp", [a, b], each=weights(3, 1), rows=rows, **options) for rows in (1, 3, 100, 1000)]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("method", DETERMINISTIC)
def test_equal_models_stay_as_they_are(method: str) -> None:
    base, (model,) = tensors(1)
    given_ = arguments(method, [model, model], base)
    for parameters in given_["each"]:
        if "density" in parameters:
            parameters["density"] = 1.0
    factor = 2 if method in ("task_arithmetic", "breadcrumbs") else 1  # they add
    close(merged(method, [model, model], **given_), base + factor * (model - base) if factor == 2 else model)


@pytest.mark.parametrize("method", NEEDS_BASE)
def test_models_that_learned_nothing_give_the_base(method: str) -> None:
    base, _ = tensors(0)
    np.testing.assert_array_equal(
        merged(method, [base.copy(), base.copy()], **arguments(method, [base, base], base)), base
    )


@pytest.mark.parametrize("method", ["karcher", "multislerp", "model_stock", "nuslerp", "slerp", "sce"])
def test_a_norm_that_is_not_finite_is_said(method: str) -> None:
    base, models = tensors(2)
    models[1][3, 3] = np.nan
    with pytest.raises(ValueError, match="finite"):
        merged(method, models, **arguments(method, models, base))


NUMBERS = st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 2.5]), st.floats(width=32, allow_nan=False))


@settings(deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 60), elements=NUMBERS), st.floats(0, 1), st.integers(1, 7))
def test_largest_is_a_stable_sort(values: Array, share: float, step: int) -> None:
    keep = int(share * values.size)

    def chunks() -> list[list[Array]]:
        return [[values[i : i + step].copy()] for i in range(0, values.size, step)]

    keeper = largest(lambda: iter(chunks()), [keep])[0].keeper()
    ours = np.concatenate([(keeper(part[0]), part[0])[1] for part in chunks()])
    np.testing.assert_array_equal(ours, top(values, keep))
