"""Products with 8-bit weights: the integers are exact, and a row's result is its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.engine.int8 import GROUP, pack, quantise
from agents.engine.kernels.build import load
from schemas.errors import ConfigError

pytestmark = pytest.mark.skipif(load() is None, reason="no C compiler here")


def exact(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same integers, multiplied in float64."""
    u, scale, least = quantise(torch.nn.functional.pad(weight, (0, 0, 0, -len(weight) % 16)))
    u = u.transpose(1, 2).flatten(0, 1).flatten(1).unflatten(1, (-1, GROUP)).double()
    scale, least = (part.transpose(1, 2).flatten(0, 1).double().unsqueeze(-1) for part in (scale, least))
    grouped = x.unflatten(1, (-1, GROUP)).double()
    most = grouped.abs().amax(-1, keepdim=True)
    rounded = (grouped * 32767 / most.where(most > 0, 1)).round() * most / 32767
    return (rounded.flatten(1) @ (least + scale * u).flatten(1).T)[:, : len(weight)]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 33),
    groups=st.integers(1, 5),
    outputs=st.integers(1, 50),
    seed=st.integers(0, 99),
    size=st.sampled_from([1e-6, 1.0, 500.0]),
)
def test_products_are_those_of_the_integers(rows, groups, outputs, seed, size):
    torch.manual_seed(seed)
    weight, x = torch.randn(outputs, GROUP * groups), torch.randn(rows, GROUP * groups) * size
    weight[0], x[0] = 0, 0
    run = pack(weight)
    out, expected = run(x), exact(weight, x)
    # One unit of the 16 bits: a value on the border may round either way.
    assert (out - expected).abs().max() <= 1e-4 * size * (GROUP * groups) ** 0.5
    assert all(torch.equal(run(x[i : i + 1])[0], out[i]) for i in range(rows))


def restored(weight: torch.Tensor) -> torch.Tensor:
    """What the packed weights stand for: the product with the identity, whose activations are exact."""
    return pack(weight)(torch.eye(weight.shape[1])).T


def test_weights_that_were_q4_1_or_q8_0_are_kept_to_the_last_bit():
    levels = torch.randint(0, 16, (16, GROUP)).float()
    levels[:, 0], levels[:, 1] = 0, 15
    u, _, _ = quantise(levels * 0.25 - 1)
    assert set((u % 17).flatten().tolist()) == {0}
    even = torch.randint(-127, 128, (16, 2 * GROUP)).float()
    even[:, ::GROUP] = 127
    for weight in (levels * 0.25 - 1, even / 64):
        assert (restored(weight) - weight).abs().max() < 1e-6


def test_other_weights_err_by_half_a_percent():
    torch.manual_seed(1)
    weight = torch.randn(64, 8 * GROUP)
    assert 0.003 < (restored(weight) - weight).norm() / weight.norm() < 0.006


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_stays_so_and_spoils_no_other(value):
    run, x = pack(torch.randn(16, 2 * GROUP)), torch.randn(3, 2 * GROUP)
    before = run(x)
    x[1, 40] = value
    after = run(x)
    assert after[1].isnan().all()
    assert torch.equal(after[[0, 2]], before[[0, 2]])


def test_the_smallest_numbers_do_not_overflow():
    assert pack(torch.randn(16, GROUP))(torch.full((1, GROUP), 1e-40)).abs().max() < 1e-30


def test_inputs_that_do_not_fit_are_named():
    with pytest.raises(ConfigError, match="48"):
        pack(torch.zeros(16, 48))
