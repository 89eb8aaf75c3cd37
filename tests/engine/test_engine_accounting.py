"""Bytes per token follow from the plan of the layers."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.engine.accounting import V41, V41_INDEXER, V41_MAIN, LayerPlan, grouped, kv_bytes_per_token, plan_of
from agents.engine.config import ModelConfig
from schemas.errors import ConfigError

BOTH = (V41_MAIN, V41_INDEXER)
SHAPE = ModelConfig(
    layers=6,
    hidden=576,
    intermediate=1536,
    heads=9,
    kv_heads=3,
    head_size=64,
    vocab_size=100,
    context=100,
    rope_theta=1e4,
    norm_eps=1e-5,
    tied=True,
)


def test_the_v41_layout_is_890_bytes():
    assert kv_bytes_per_token(V41) == 890
    assert (V41_MAIN.bytes, V41_INDEXER.bytes) == (288, 68)
    kinds = [layer.kind for layer in V41]
    assert (len(V41), kinds[:2], kinds.count("full"), kinds.count("reindex")) == (40, ["window"] * 2, 4, 4)
    assert sum(Fraction(1, layer.ratio) for layer in V41 if layer.kind == "full") == Fraction(5, 2)


def test_the_number_follows_the_plan():
    encoder, decoder = V41[:20], V41[20:]
    # No compression in the encoder: three whole entries instead of three halves.
    plain = [replace(layer, ratio=1) for layer in encoder]
    assert kv_bytes_per_token([*plain, *decoder]) == (3 + 1) * 356
    # A decoder whose groups share nothing: five entries instead of one.
    apart = grouped(20, groups=5, size=4, ratio=1, entries=BOTH, shared=False)
    assert kv_bytes_per_token([*encoder, *apart]) == (1.5 + 5) * 356
    # FP8 main entries, no indexer.
    entries = (replace(V41_MAIN, bits=8),)
    assert kv_bytes_per_token([replace(layer, entries=layer.entries and entries) for layer in V41]) == 2.5 * 544
    # Six encoder groups of three.
    more = grouped(2, groups=6, size=3, ratio=2, entries=BOTH, shared=False)
    assert kv_bytes_per_token([*V41[:2], *more, *decoder]) == (3 + 1) * 356


@given(
    groups=st.integers(1, 6),
    size=st.integers(1, 6),
    ratio=st.integers(1, 8),
    shared=st.booleans(),
    windows=st.integers(0, 3),
)
def test_only_full_layers_own_anything(groups, size, ratio, shared, windows):
    layers = grouped(windows, groups, size, ratio, BOTH, shared=shared)
    plan = [*[LayerPlan("window")] * windows, *layers]
    assert len(plan) == windows + groups * size
    assert kv_bytes_per_token(plan) == Fraction(356 * (1 if shared else groups), ratio)


@pytest.mark.parametrize("source", [None, 0, 1, 2, 5, -1])
def test_a_layer_cannot_reuse_what_is_not_there(source):
    plan = [LayerPlan("window"), LayerPlan("full", BOTH), LayerPlan("reuse", source=source)]
    if source == 1:
        assert kv_bytes_per_token(plan) == 356
    else:
        with pytest.raises(ConfigError, match=f"layer 2 is reuse of {source}"):
            kv_bytes_per_token(plan)


def test_our_formats():
    channels = 6 * 3 * 64
    assert kv_bytes_per_token(plan_of(SHAPE, "fp32")) == channels * 8
    assert kv_bytes_per_token(plan_of(SHAPE, "bf16")) == channels * 4
    # One byte and a 16th of two for each of key and value.
    assert kv_bytes_per_token(plan_of(SHAPE, "int8")) == channels * 2 * (1 + 2 / 16)
    assert kv_bytes_per_token(plan_of(SHAPE, "k8v4")) == channels * (1 + 2 / 16 + 0.5 + 4 / 16)
    assert kv_bytes_per_token(plan_of(SHAPE, "k8v4", group=32)) == channels * (1 + 2 / 32 + 0.5 + 4 / 32)
    # A group never crosses a head: heads of 8 channels have a scale each.
    small = replace(SHAPE, head_size=8)
    assert kv_bytes_per_token(plan_of(small, "int8")) == 6 * 3 * 8 * 2 * (1 + 2 / 8)


def test_windowed_layers_own_nothing_that_lasts():
    mixed = replace(SHAPE, windows=(None, 32, 32, None, 32, 32))
    assert kv_bytes_per_token(plan_of(mixed, "int8")) * 3 == kv_bytes_per_token(plan_of(SHAPE, "int8"))
    assert kv_bytes_per_token(plan_of(replace(SHAPE, windows=(32,) * 6), "int8")) == 0


@given(
    kv_heads=st.integers(1, 4),
    head_size=st.sampled_from([8, 16, 40, 64, 80, 128]),
    windows=st.lists(st.sampled_from([None, 8]), min_size=1, max_size=4),
    kind=st.sampled_from(["fp32", "bf16", "int8", "k8v4"]),
)
def test_the_buffers_are_as_large_as_the_plan_says(kv_heads, head_size, windows, kind):
    from agents.engine.kv import KVStore

    shape = replace(
        SHAPE,
        layers=len(windows),
        heads=kv_heads,
        kv_heads=kv_heads,
        head_size=head_size,
        windows=tuple(windows),
    )
    full = KVStore(windows.count(None), kv_heads, head_size, 3, kind)
    assert full.bytes_per_token == kv_bytes_per_token(plan_of(shape, kind))
