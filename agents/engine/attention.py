"""Attention over blocks of keys and values, in torch; imports it.

Called by `models.llama` where `kernels.native` does not run (CUDA, no C compiler), and by tests as its reference.

Sequences that decode are attended in groups that begin with the same blocks (cascade attention, as in Juravsky et al.
2024, "Hydragen"): scores against the shared keys for the whole group in one product, scores against each one's own
keys, one softmax over both. The shared blocks are read once. A chunk of a prompt is attended alone.
"""

import math
from dataclasses import dataclass
from itertools import groupby

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from agents.engine.kv import KVStore
from agents.engine.sequence import BLOCK


@dataclass(frozen=True)
class Span:
    """Tokens [start, start + count) of one sequence in a step; the rows of a step are those of its spans, in order.

    `table[i]`: block of tokens [16 i, 16 i + 16) in layers with full attention; `window`: the same for sliding-window
    layers. Tokens before `kept` have keys and values with full attention that are not written again.
    """

    table: list[int]
    start: int
    count: int
    kept: int = 0
    window: list[int] | None = None


@dataclass(frozen=True)
class Heads:
    """What attention needs to know of one layer. `q_norm`, `k_norm` [size] and `bias` [all heads * size] or None."""

    heads: int
    kv_heads: int
    size: int
    window: int | None
    norm_eps: float
    bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


class TorchKernels:
    """What a decoder layer does beside its products, for one model."""

    def __init__(self, heads: list[Heads], cos: torch.Tensor, sin: torch.Tensor) -> None:
        """`heads`: one of each layer. `cos`, `sin`: [context, size / 2]."""
        self._heads, self._cos, self._sin = heads, cos, sin

    def attention(self, spans: list[Span]) -> "TorchAttention":
        """Attention of one step."""
        return TorchAttention(self._heads, spans, self._cos, self._sin)

    @staticmethod
    def add_norm(x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`x` += `delta` in place, and its RMSNorm (Zhang and Sennrich 2019). [rows, hidden] all."""
        if delta is not None:
            x += delta
        return rms_norm(x, weight.shape, weight, eps)

    @staticmethod
    def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
        """SwiGLU's gate (Shazeer 2020): [rows, 2 n] to [rows, n]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up


class TorchAttention:
    """Attention of one step, layer by layer."""

    def __init__(self, heads: list[Heads], spans: list[Span], cos: torch.Tensor, sin: torch.Tensor) -> None:
        self._heads, self._spans = heads, spans
        self._rows = sum(span.count for span in spans)
        device = cos.device
        positions = [p for span in spans for p in range(span.start, span.start + span.count)]
        self._positions = torch.tensor(positions, device=device)
        # What is rotated with its own place in the row: [rows, 1, size].
        self._cos = torch.cat([cos[self._positions]] * 2, dim=-1).unsqueeze(1)
        self._sin = torch.cat([sin[self._positions]] * 2, dim=-1).unsqueeze(1)
        self._written = [p >= span.kept for span in spans for p in range(span.start, span.start + span.count)]

    def __call__(self, index: int, store: KVStore, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Attention of the model's layer `index`, which is the store's layer `layer`.

        `qkv`: [rows, (heads + 2 kv_heads) * size]; its keys and values go to `store`. Returns [rows, heads * size];
        rows after those of the spans are padding and stay zero.
        """
        heads = self._heads[index]
        out = qkv.new_zeros(len(qkv), heads.heads, heads.size)
        q, kv = self._prepare(heads, qkv[: self._rows])
        tables = [span.table if heads.window is None else span.window or [] for span in self._spans]
        self._write(heads, store, layer, kv, tables)
        row, decoding = 0, []
        for span, table in zip(self._spans, tables, strict=True):
            if span.count == 1:
                decoding.append((table, span.start, row))
            else:
                part = q[row : row + span.count]
                out[row : row + span.count] = _chunk(heads, store, layer, part, span.start, table)
            row += span.count
        decoding.sort(key=lambda one: one[0][_first(heads, one[1])])
        for _, group in groupby(decoding, key=lambda one: (_first(heads, one[1]), one[0][_first(heads, one[1])])):
            members = list(group)
            rows = [row for _, _, row in members]
            out[rows] = _decode(heads, store, layer, q[rows], [(table, start) for table, start, _ in members])
        return out.flatten(1)

    def _prepare(self, heads: Heads, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries [rows, heads, size]; rotated keys, and values [rows, 2, kv_heads, size]."""
        if heads.bias is not None:
            qkv = qkv + heads.bias
        q, k, v = qkv.unflatten(-1, (-1, heads.size)).split([heads.heads, heads.kv_heads, heads.kv_heads], dim=1)
        if heads.q_norm is not None and heads.k_norm is not None:
            q = rms_norm(q, (heads.size,), heads.q_norm, heads.norm_eps)
            k = rms_norm(k, (heads.size,), heads.k_norm, heads.norm_eps)
        return self._rotate(q), torch.stack([self._rotate(k), v], dim=1)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions (Su et al. 2021), halves as Hugging Face pairs them."""
        first, second = x.chunk(2, dim=-1)
        return x * self._cos + torch.cat([-second, first], dim=-1) * self._sin

    def _write(self, heads: Heads, store: KVStore, layer: int, kv: torch.Tensor, tables: list[list[int]]) -> None:
        blocks = [
            table[p // BLOCK]
            for span, table in zip(self._spans, tables, strict=True)
            for p in range(span.start, span.start + span.count)
        ]
        at, places = torch.tensor(blocks, device=kv.device), self._positions % BLOCK
        if heads.window is None and not all(self._written):
            kept = torch.tensor(self._written, device=kv.device)
            at, places, kv = at[kept], places[kept], kv[kept]
        store.write(layer, at, places, kv)


def _first(heads: Heads, position: int) -> int:
    """The first block that a token at `position` attends to."""
    return 0 if heads.window is None else max(0, position - heads.window + 1) // BLOCK


def _chunk(heads: Heads, store: KVStore, layer: int, q: torch.Tensor, start: int, table: list[int]) -> torch.Tensor:
    """Attention of `q` [count, heads, size], consecutive tokens from `start` on."""
    first, last = _first(heads, start), (start + len(q) - 1) // BLOCK
    k, v = store.read(layer, torch.tensor(table[first : last + 1], device=q.device))
    at = torch.arange(first * BLOCK, (last + 1) * BLOCK, device=q.device)
    rows = torch.arange(start, start + len(q), device=q.device).unsqueeze(1)
    seen = at <= rows
    if heads.window is not None:
        seen &= at > rows - heads.window
        seen &= _there(table[first : last + 1], q.device)
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k.flatten(0, 1), v.flatten(0, 1)))
    out = scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1)


def _decode(
    heads: Heads, store: KVStore, layer: int, q: torch.Tensor, members: list[tuple[list[int], int]]
) -> torch.Tensor:
    """Attention of single tokens `q` [n, heads, size]; all `members` (table, position) begin with the same block."""
    first = _first(heads, members[0][1])
    shared = first + _common([table[first : start // BLOCK + 1] for table, start in members])
    if heads.window is not None:
        shared = first  # windows begin within a block, at other places for each
    lasts = [start // BLOCK for _, start in members]
    width = max(lasts) + 1 - shared
    owned = [table[shared : last + 1] for (table, _), last in zip(members, lasts, strict=True)]
    padded = [blocks + [0] * (width - len(blocks)) for blocks in owned]
    own_k, own_v = store.read(layer, torch.tensor(padded, dtype=torch.long, device=q.device))
    grouped = q.unflatten(1, (heads.kv_heads, -1)) / math.sqrt(heads.size)
    scores = torch.einsum("nkgc,nbtkc->nkgbt", grouped, own_k).flatten(3)
    at = torch.arange(shared * BLOCK, (shared + width) * BLOCK, device=q.device)
    positions = torch.tensor([start for _, start in members], device=q.device).unsqueeze(1)
    hidden = at > positions
    if heads.window is not None:
        hidden |= at <= positions - heads.window
        hidden |= ~torch.stack([_there(blocks, q.device) for blocks in padded])
    scores.masked_fill_(hidden[:, None, None], -math.inf)
    if shared > first:
        k, v = store.read(layer, torch.tensor(members[0][0][first:shared], device=q.device))
        common = torch.einsum("nkgc,btkc->nkgbt", grouped, k).flatten(3)
        weights = torch.softmax(torch.cat([common, scores], dim=-1), dim=-1)
        before, own = weights.split([common.shape[-1], scores.shape[-1]], dim=-1)
        out = torch.einsum("nkgs,skc->nkgc", before, v.flatten(0, 1))
    else:
        own, out = torch.softmax(scores, dim=-1), torch.zeros_like(grouped)
    return (out + torch.einsum("nkgs,nskc->nkgc", own, own_v.flatten(1, 2))).flatten(1, 2)


def _there(table: list[int], device: torch.device) -> torch.Tensor:
    """Of the tokens in these blocks, which have one: a window may have lost its first, and a replay goes on without."""
    return torch.tensor(table, device=device).repeat_interleave(BLOCK) >= 0


def _common(tables: list[list[int]]) -> int:
    """How many blocks all tables begin with, short of the last one of each: a token attends to its own block alone."""
    longest = min(map(len, tables)) - 1
    if len(tables) == 1:
        return 0
    for place in range(longest):
        if any(table[place] != tables[0][place] for table in tables):
            return place
    return longest
