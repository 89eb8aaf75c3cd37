"""Keys and values of one sequence, and attention over them. Called by `models.llama`; imports torch.

Each sequence owns its buffer and is attended alone: no padding, no gathering, and the result of one sequence does not
depend on which others run beside it. Linear layers are where batching pays; they see all rows at once.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from agents.engine.config import ModelConfig

KV_DTYPE = torch.bfloat16


def kv_bytes_per_token(shape: ModelConfig) -> int:
    """Memory of one token's keys and values, all layers."""
    return shape.kv_bytes_per_token(KV_DTYPE.itemsize)


class KV:
    """Keys and values of one sequence: `data` is [layers, 2, kv_heads, capacity, head_size]."""

    def __init__(self, shape: ModelConfig, capacity: int) -> None:
        self.capacity = capacity
        self.data = torch.empty(shape.layers, 2, shape.kv_heads, capacity, shape.head_size, dtype=KV_DTYPE)

    def copy_from(self, other: "KV", length: int) -> None:
        """Take over the first `length` tokens of `other`."""
        self.data[:, :, :, :length] = other.data[:, :, :, :length]


@dataclass(frozen=True)
class Span:
    """Tokens of one sequence in a step: rows [row, row + count) of the batch, at positions [start, start + count)."""

    kv: KV
    row: int
    start: int
    count: int


def attend(layer: int, q: torch.Tensor, kv: torch.Tensor, spans: list[Span]) -> torch.Tensor:
    """Causal attention of each span over its own sequence.

    `q`: [rows, heads, head_size]; `kv`: [rows, 2, kv_heads, head_size], written to the buffers here. Returns
    [rows, heads * head_size].
    """
    rows, heads, size = q.shape
    out = torch.empty(rows, heads, size)
    kv = kv.to(KV_DTYPE)
    q = q.to(KV_DTYPE)
    for span in spans:
        data = span.kv.data[layer]
        end = span.start + span.count
        block = slice(span.row, span.row + span.count)
        data[:, :, span.start : end] = kv[block].permute(1, 2, 0, 3)
        keys, values = data[0, :, :end].unsqueeze(0), data[1, :, :end].unsqueeze(0)
        out[block] = _one(q[block], keys, values, span)
    return out.view(rows, heads * size)


def _one(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, span: Span) -> torch.Tensor:
    count, heads, size = q.shape
    if count == 1:
        # The query heads that share a key head stand in as queries of one head: one pass over keys and values.
        groups = q.view(1, keys.shape[1], -1, size)
        return scaled_dot_product_attention(groups, keys, values).reshape(1, heads, size)
    mask = None
    if span.start:
        mask = torch.ones(count, keys.shape[2], dtype=torch.bool).tril_(span.start)
    out = scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return out.squeeze(0).transpose(0, 1)
