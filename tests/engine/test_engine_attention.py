"""Attention over blocks: the C kernels against the torch path, both against plain softmax; sharing, chunks, windows."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.engine.accounting import KVFormat
from agents.engine.attention import Heads, Span, TorchKernels
from agents.engine.kernels.build import load
from agents.engine.kernels.native import NativeKernels
from agents.engine.kv import FORMATS, KVStore, layout
from agents.engine.sequence import BLOCK

HEADS, KV_HEADS, SIZE, CONTEXT = 6, 2, 16, 200
TOLERANCE = {"fp32": 1e-5, "bf16": 0.03, "int8": 0.03, "k8v4": 0.3}


def heads(window: int | None, *, extras: bool = False) -> Heads:
    width = (HEADS + 2 * KV_HEADS) * SIZE
    norms = [torch.rand(SIZE) + 0.5 if extras else None for _ in range(2)]
    return Heads(HEADS, KV_HEADS, SIZE, window, 1e-6, torch.randn(width) if extras else None, *norms)


def rotations() -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(CONTEXT).float(), 100.0 ** -(torch.arange(0, SIZE, 2).float() / SIZE))
    return angles.cos(), angles.sin()


def both(one: Heads, format: KVFormat = "fp32") -> list[TorchKernels | NativeKernels]:
    library = load()
    if library is None:
        pytest.skip("no C compiler here")
    return [
        TorchKernels([one], *rotations()),
        NativeKernels(library, [one], layout(format, SIZE), *rotations()),
    ]


def new_store(blocks: int, format: KVFormat = "fp32") -> KVStore:
    return KVStore(1, KV_HEADS, SIZE, blocks, format)


def plain(one: Heads, qkv: torch.Tensor) -> torch.Tensor:
    """Softmax attention of one whole sequence, written down once more without blocks."""
    cos, sin = (torch.cat([x[: len(qkv)]] * 2, dim=-1).unsqueeze(1) for x in rotations())
    if one.bias is not None:
        qkv = qkv + one.bias
    q, k, v = qkv.unflatten(-1, (-1, SIZE)).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    if one.q_norm is not None and one.k_norm is not None:
        q = q * torch.rsqrt((q * q).mean(-1, keepdim=True) + one.norm_eps) * one.q_norm
        k = k * torch.rsqrt((k * k).mean(-1, keepdim=True) + one.norm_eps) * one.k_norm
    q, k = (x * cos + torch.cat([-x[..., SIZE // 2 :], x[..., : SIZE // 2]], dim=-1) * sin for x in (q, k))
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
    scores = torch.einsum("qhc,khc->hqk", q, k) / math.sqrt(SIZE)
    distance = torch.arange(len(q)).unsqueeze(1) - torch.arange(len(q))
    hidden = distance < 0 if one.window is None else (distance < 0) | (distance >= one.window)
    return torch.einsum("hqk,khc->qhc", scores.masked_fill(hidden, -math.inf).softmax(-1), v).flatten(1)


def in_chunks(kernels, store: KVStore, qkv: torch.Tensor, table: list[int], cuts: list[int]) -> torch.Tensor:
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, len(qkv)], strict=True):
        attend = kernels.attention([Span(table, start, stop - start, 0, table)])
        parts.append(attend(0, store, 0, qkv[start:stop].clone()))
    return torch.cat(parts)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 100),
    cuts=st.sets(st.integers(1, 99), max_size=4),
    window=st.sampled_from([None, 5, 16, 33]),
    extras=st.booleans(),
    format=st.sampled_from(FORMATS),
    seed=st.integers(0, 99),
)
def test_any_cut_of_a_prompt_is_plain_attention(length, cuts, window, extras, format, seed):
    torch.manual_seed(seed)
    one = heads(window, extras=extras)
    qkv = torch.randn(length, (HEADS + 2 * KV_HEADS) * SIZE)
    table = torch.randperm(8)[: -(-length // BLOCK)].tolist()
    expected = plain(one, qkv)
    whole = None
    for kernels in both(one, format):
        store = new_store(8, format)
        out = in_chunks(kernels, store, qkv, table, sorted(cut for cut in cuts if cut < length))
        assert (out - expected).abs().max() < TOLERANCE[format]
        whole = in_chunks(kernels, new_store(8, format), qkv, table, [])
    assert torch.equal(out, whole), "the C kernels give equal bits however a prompt is cut"


@pytest.mark.parametrize("format", FORMATS)
def test_both_paths_write_the_same_bytes(format):
    torch.manual_seed(1)
    one, stores = heads(None), []
    qkv = torch.randn(40, (HEADS + 2 * KV_HEADS) * SIZE) * torch.logspace(-3, 2, 40).unsqueeze(1)
    qkv[7] = 0
    for kernels in both(one, format):
        stores.append(new_store(3, format))
        in_chunks(kernels, stores[-1], qkv, [2, 0, 1], [])
    values = [store.read(0, torch.tensor([2, 0, 1])) for store in stores]
    # Rotation sums in another order: keys may differ by one step of their quantisation, values are equal.
    assert torch.equal(values[0][1], values[1][1])
    limit = {"fp32": 1e-5, "bf16": 0.01}.get(format, 0.02)
    assert ((values[0][0] - values[1][0]).abs() <= limit * values[0][0].abs().amax(-1, keepdim=True) + 1e-6).all()


@pytest.mark.parametrize("format", FORMATS)
def test_a_shared_beginning_is_attended_as_if_it_were_everyones_own(format):
    torch.manual_seed(2)
    one = heads(None)
    shared = torch.randn(48, (HEADS + 2 * KV_HEADS) * SIZE)
    own = torch.randn(40, 20, (HEADS + 2 * KV_HEADS) * SIZE)
    for kernels in both(one, format):
        store = new_store(3 + 2 * 40, format)
        tables = [[0, 1, 2, 3 + 2 * i, 4 + 2 * i] for i in range(40)]
        in_chunks(kernels, store, shared, tables[0], [])
        for place in range(20):
            spans = [Span(table, 48 + place, 1) for table in tables]
            together = kernels.attention(spans)(0, store, 0, own[:, place].clone())
        apart = new_store(5, format)
        for i in (0, 17, 39):
            alone = in_chunks(kernels, apart, torch.cat([shared, own[i]]), [4, 2, 0, 1, 3], [48, *range(49, 68)])
            difference = (together[i] - alone[-1]).abs().max()
            assert difference == 0 if isinstance(kernels, NativeKernels) else difference < 1e-5


def test_kept_tokens_are_read_and_not_written():
    torch.manual_seed(3)
    one = heads(None)
    first, second = torch.randn(2, 32, (HEADS + 2 * KV_HEADS) * SIZE)
    for kernels in both(one):
        store = new_store(2)
        in_chunks(kernels, store, first, [0, 1], [])
        before = store.data.clone()
        kernels.attention([Span([0, 1], 10, 22, kept=25)])(0, store, 0, second[10:].clone())
        changed = (
            store.read(0, torch.tensor([0, 1]))[0] != KVStore.read(_like(store, before), 0, torch.tensor([0, 1]))[0]
        )
        assert changed.flatten(0, 1).any(dim=(1, 2)).nonzero().flatten().tolist() == list(range(25, 32))


def _like(store: KVStore, data: torch.Tensor) -> KVStore:
    other = new_store(store.data.shape[1], store.layout.format)
    other.data = data
    return other


@pytest.mark.parametrize("format", FORMATS)
def test_exported_blocks_hold_nothing_of_others(format):
    store = new_store(4, format)
    store.data.random_(1, 60)
    taken = store.export([3, 1], spare=5)
    other = new_store(6, format)
    other.restore([0, 5], taken)
    assert torch.equal(other.data[:, 0], store.data[:, 3])
    keys, values = other.read(0, torch.tensor([5]))
    assert not keys[0, -5:].any() and not values[0, -5:].any()
    kept, _ = store.read(0, torch.tensor([1]))
    assert torch.equal(keys[0, :-5], kept[0, :-5])
    with pytest.raises(ValueError, match="not the bytes"):
        other.restore([0], taken)


def test_blocks_that_nobody_wrote_cost_nothing():
    def resident_mb() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    before = resident_mb()
    store = KVStore(4, 4, 64, 100_000, "int8")
    assert store.data.nbytes > 2**31
    assert resident_mb() - before < 100


def test_a_lost_block_of_a_window_is_skipped():
    torch.manual_seed(4)
    one = heads(20)
    qkv = torch.randn(40, (HEADS + 2 * KV_HEADS) * SIZE)
    said = []
    for kernels in both(one):
        # Tokens 16 and on, whose windows reach back into a block that is not there; then one token alone.
        store = new_store(3)
        chunk = kernels.attention([Span([], 16, 23, 0, [-1, 2, 0])])(0, store, 0, qkv[16:39].clone())
        single = kernels.attention([Span([], 39, 1, 0, [-1, 2, 0])])(0, store, 0, qkv[39:].clone())
        said.append(torch.cat([chunk, single]))
    assert (said[0] - said[1]).abs().max() < 1e-5
    # The last five see only what is there.
    assert (said[1][-5:] - plain(one, qkv)[-5:]).abs().max() < 1e-5
