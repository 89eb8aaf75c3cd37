"""Keys and values of all sequences, in blocks of 16 tokens. Made by `models.llama`; imports torch.

One buffer of bytes per store, [layers, blocks, bytes of a block], so that a block is copied, saved and restored as it
is. A block has a part for each key head: keys [size, 16], their scales [groups, 16], values [16, size], their scales
[16, groups]. Keys lie channel by channel: scores of 16 keys are then sums of whole vectors, without a sum across one.

- fp32, bf16: as they are, without scales.
- int8: x = q * scale, one bfloat16 scale per token and group of 16 channels, rounded up so that no q is clipped.
- k8v4: keys as int8; values x = least + q * scale with q in 0..15, two in a byte (channel c and c + size / 2), a
  bfloat16 scale and least per token and group of 16 channels.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from agents.engine.accounting import KVFormat
from agents.engine.sequence import BLOCK
from schemas.errors import ConfigError

FORMATS: tuple[KVFormat, ...] = ("fp32", "bf16", "int8", "k8v4")
GROUP = 16
"""Channels that share a scale."""
LARGEST = 1024
"""Channels of a head for which the C kernels have room."""


@dataclass(frozen=True)
class Layout:
    """Where the parts of one key head lie in a block, in bytes. `group`: channels that share a scale."""

    format: KVFormat
    size: int
    group: int
    key_scales: int
    values: int
    value_scales: int
    head_bytes: int


def layout(format: KVFormat, size: int) -> Layout:
    """The layout of heads with `size` channels, a multiple of 8. ConfigError otherwise."""
    if size % 8 or size > LARGEST:
        raise ConfigError(f"heads of {size} channels are not supported: no multiple of 8, or above {LARGEST}")
    group = math.gcd(size, GROUP)
    key_bytes = {"fp32": 4 * size, "bf16": 2 * size}.get(format, size)
    value_bytes = size // 2 if format == "k8v4" else key_bytes
    scaled = format in ("int8", "k8v4")
    key_scales = BLOCK * key_bytes
    values = key_scales + (2 * BLOCK * size // group if scaled else 0)
    value_scales = values + BLOCK * value_bytes
    per_group = {"int8": 2, "k8v4": 4}.get(format, 0)
    head_bytes = value_scales + BLOCK * per_group * size // group
    return Layout(format, size, group, key_scales, values, value_scales, head_bytes)


class KVStore:
    """Blocks of `layers` layers."""

    def __init__(
        self, layers: int, kv_heads: int, size: int, blocks: int, format: KVFormat, device: str = "cpu"
    ) -> None:
        """`size`: channels of a head. Only blocks that were written to cost memory, on a CPU."""
        self.layout = layout(format, size)
        self.kv_heads = kv_heads
        shape = (layers, blocks, kv_heads * self.layout.head_bytes)
        # numpy leaves it to the kernel to give zeros when a page is touched; torch would write all of them now.
        lazy = torch.from_numpy(np.zeros(shape, dtype=np.uint8)) if device == "cpu" else None
        self.data = torch.zeros(shape, dtype=torch.uint8, device=device) if lazy is None else lazy

    @property
    def bytes_per_token(self) -> float:
        """Memory that one token owns, measured on the buffer."""
        layers, blocks, block_bytes = self.data.shape
        return self.data.nbytes / (blocks * BLOCK) if layers and blocks and block_bytes else 0.0

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks, (source, target) each."""
        for source, target in pairs:
            self.data[:, target] = self.data[:, source]

    def export(self, blocks: list[int], spare: int) -> torch.Tensor:
        """The bytes of some blocks, uint8 [layers, len(blocks), bytes of a block], on the CPU.

        The last `spare` places of the last block are not used: they become zero, for they may hold what others left.
        """
        taken = torch.empty(len(self.data), len(blocks), self.data.shape[2], dtype=torch.uint8)
        # Block by block: torch picks out single bytes with a list of indices, ten times slower.
        for place, block in enumerate(blocks):
            taken[:, place] = self.data[:, block]
        if spare and blocks:
            for part, dim in zip(_parts(taken[:, -1], self.kv_heads, self.layout), (-1, -2, -1, -2), strict=False):
                part.narrow(dim, BLOCK - spare, spare).zero_()
        return taken

    def restore(self, blocks: list[int], data: torch.Tensor) -> None:
        """Put exported bytes back, into other blocks or another store of the same layout. ValueError when it is not."""
        if data.dtype != torch.uint8 or data.shape != (len(self.data), len(blocks), self.data.shape[2]):
            raise ValueError(f"{tuple(data.shape)} are not the bytes of {len(blocks)} blocks of this model and format")
        for place, block in enumerate(blocks):
            self.data[:, block] = data[:, place]

    def write(self, layer: int, blocks: torch.Tensor, places: torch.Tensor, kv: torch.Tensor) -> None:
        """Put tokens' keys and values `kv` [rows, 2, kv_heads, size] into `blocks` [rows], at `places` [rows] there."""
        at, k, v = self.layout, kv[:, 0], kv[:, 1]
        keys, values, *scales = _parts(self.data[layer], self.kv_heads, at)
        if not scales:
            keys[blocks, :, :, places] = k.to(keys.dtype)
            values[blocks, :, places] = v.to(values.dtype)
            return
        key_scales, value_scales = scales
        keys[blocks, :, :, places], key_scales[blocks, :, :, places] = quantise(k, at.group)
        if at.format == "int8":
            values[blocks, :, places], value_scales[blocks, :, places] = quantise(v, at.group)
        else:
            values[blocks, :, places], value_scales[blocks, :, places] = quantise4(v, at.group)

    def read(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `blocks` [...], fp32, each [..., 16, kv_heads, size]."""
        at = self.layout
        keys, values, *scales = (part[blocks] for part in _parts(self.data[layer], self.kv_heads, at))
        k, v = keys.to(torch.float32), values
        if scales:
            key_scales, value_scales = (scale.to(torch.float32) for scale in scales)
            k = (k.unflatten(-2, (-1, at.group)) * key_scales.unsqueeze(-2)).flatten(-3, -2)
        if at.format == "int8":
            v = (v.unflatten(-1, (-1, at.group)) * value_scales.unsqueeze(-1)).flatten(-2)
        elif at.format == "k8v4":
            v = torch.cat([values & 15, values >> 4], dim=-1).unflatten(-1, (-1, at.group))
            scale, least = value_scales.unflatten(-1, (-1, 2)).unsqueeze(-2).unbind(-1)
            v = (v * scale + least).flatten(-2)
        # Places not written yet hold what others left, which may be no number: hidden or not, that would spread.
        return k.movedim(-1, -3).nan_to_num(), v.to(torch.float32).transpose(-3, -2).nan_to_num()


def _parts(data: torch.Tensor, kv_heads: int, at: Layout) -> list[torch.Tensor]:
    """Views into blocks of bytes [n, bytes of a block]: keys [n, kv_heads, size, 16], their scales [.., groups, 16],
    values [.., 16, size], their scales [.., 16, groups].

    4-bit values: [.., 16, size / 2] bytes; scales [.., 16, groups * 2], a scale and a least each. Without scales: none.
    """
    heads = data.unflatten(-1, (kv_heads, at.head_bytes))
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(at.format, torch.int8)
    value_kind = torch.uint8 if at.format == "k8v4" else kind
    keys = heads[..., : at.key_scales].view(kind).unflatten(-1, (at.size, BLOCK))
    values = heads[..., at.values : at.value_scales].view(value_kind).unflatten(-1, (BLOCK, -1))
    if at.format in ("fp32", "bf16"):
        return [keys, values]
    key_scales = heads[..., at.key_scales : at.values].view(torch.bfloat16).unflatten(-1, (-1, BLOCK))
    value_scales = heads[..., at.value_scales :].view(torch.bfloat16).unflatten(-1, (BLOCK, -1))
    return [keys, values, key_scales, value_scales]


def quantise(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 of `x` [..., size] and bfloat16 scales [..., size / group]."""
    grouped = x.unflatten(-1, (-1, group))
    scales = _up(grouped.abs().amax(-1) / 127)
    q = (grouped / _nonzero(scales)).round().clamp(-127, 127)
    return q.flatten(-2).to(torch.int8), scales.to(torch.bfloat16)


def quantise4(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """4-bit of `x` [..., size], packed [..., size / 2] uint8, and bfloat16 (scale, least) [..., size / group * 2]."""
    grouped = x.unflatten(-1, (-1, group))
    least = grouped.amin(-1).to(torch.bfloat16).to(torch.float32)
    scales = _up((grouped.amax(-1) - least).clamp(min=0) / 15)
    q = ((grouped - least.unsqueeze(-1)) / _nonzero(scales)).round().clamp(0, 15).flatten(-2).to(torch.uint8)
    low, high = q.chunk(2, dim=-1)
    return low | high << 4, torch.stack([scales, least], dim=-1).flatten(-2).to(torch.bfloat16)


def _up(x: torch.Tensor) -> torch.Tensor:
    """Non-negative fp32 rounded up to what bfloat16 can hold."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)


def _nonzero(scales: torch.Tensor) -> torch.Tensor:
    return torch.where(scales > 0, scales, 1.0).unsqueeze(-1)
