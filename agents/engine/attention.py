"""Keys and values of one sequence, and attention over them. Called by `models.llama`; imports torch.

Each sequence owns its buffer and is attended alone: no padding, no gathering, and the result of one sequence does not
depend on which others run beside it. Linear layers are where batching pays; they see all rows at once.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from agents.engine.config import ModelConfig


class KV:
    """Keys and values of one sequence: `data` is [layers, 2, kv_heads, capacity, head_size]."""

    def __init__(self, shape: ModelConfig, capacity: int, dtype: torch.dtype) -> None:
        self.capacity = capacity
        self.data = torch.empty(shape.layers, 2, shape.kv_heads, capacity, shape.head_size, dtype=dtype)

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


class Attention:
    """Causal attention of one step, layer by layer: each span over its own sequence.

    The views into the buffers are made once a step for all layers; made per layer they cost as much as the arithmetic.
    """

    def __init__(self, spans: list[Span]) -> None:
        self._counts = [span.count for span in spans]
        ends = [span.start + span.count for span in spans]
        data = [span.kv.data for span in spans]
        self._dtype = data[0].dtype
        # Per layer and span: where new tokens go [2, kv_heads, count, size], keys and values [1, kv_heads, end, size].
        self._new = _by_layer([d[:, :, :, s.start : e] for d, s, e in zip(data, spans, ends, strict=True)])
        self._keys = _by_layer([d[:, :1, :, :e] for d, e in zip(data, ends, strict=True)])
        self._values = _by_layer([d[:, 1:, :, :e] for d, e in zip(data, ends, strict=True)])
        self._masks = [_mask(span) for span in spans]

    def __call__(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """`q`: [rows, heads, size]; `kv`: [rows, 2, kv_heads, size], written to the buffers. [rows, heads * size].

        Rows after those of the spans are padding and stay zero.
        """
        rows, heads, size = q.shape
        used = sum(self._counts)
        new = kv[:used].to(self._dtype).permute(1, 2, 0, 3).split(self._counts, dim=2)
        torch._foreach_copy_(self._new[layer], new)
        queries = q[:used].to(self._dtype).split(self._counts)
        parts = [
            _attend(*each) for each in zip(queries, self._keys[layer], self._values[layer], self._masks, strict=True)
        ]
        if rows > used:
            parts.append(torch.zeros(rows - used, heads, size, dtype=self._dtype))
        return torch.cat(parts).view(rows, heads * size).to(q.dtype)


def _by_layer(views: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    return list(zip(*(view.unbind(0) for view in views), strict=True))


def _mask(span: Span) -> torch.Tensor | None:
    """What a chunk in the middle may see; none is needed for one token, nor at the beginning (plainly causal)."""
    if span.count == 1 or span.start == 0:
        return None
    return torch.ones(span.count, span.start + span.count, dtype=torch.bool).tril_(span.start)


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    count, heads, size = q.shape
    if count == 1:
        # The query heads that share a key head stand in as queries of one head: one pass over keys and values.
        groups = q.view(1, keys.shape[1], -1, size)
        return scaled_dot_product_attention(groups, keys, values).reshape(1, heads, size)
    out = scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return out.squeeze(0).transpose(0, 1)
