"""Bytes of keys and values that one token owns, derived from a plan of its layers. No torch.

A plan says for each layer whose entries it attends to, and of what an entry consists. `V41` is the layout of S17,
`plan_of` gives that of a model this engine runs; both go through the same sum. Called by the bench and `kv`'s tests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from agents.engine.config import ModelConfig
from schemas.errors import ConfigError

KVFormat = Literal["fp32", "bf16", "int8", "k8v4"]
"""How keys and values are stored; see `kv`."""

LayerKind = Literal["full", "reuse", "reindex", "window"]


@dataclass(frozen=True)
class Entry:
    """One vector per token: `channels` of `bits` each, and `scale_bytes` for every `group` channels."""

    channels: int
    bits: int
    group: int = 1
    scale_bytes: int = 0

    @property
    def bytes(self) -> Fraction:
        """Size, packed without gaps."""
        return Fraction(self.channels * self.bits, 8) + Fraction(self.channels, self.group) * self.scale_bytes


@dataclass(frozen=True)
class LayerPlan:
    """One layer. `entries` is what it makes for every `ratio` tokens (compression), main and indexer entries alike.

    full: attends to its own entries. reuse: to those of layer `source`, at the places that layer chose. reindex: to
    those of `source`, at places it chooses itself with its own query over the shared indexer keys. window: to a sliding
    window, which lives with the turn and owns nothing per token.
    """

    kind: LayerKind
    entries: tuple[Entry, ...] = ()
    ratio: int = 1
    source: int | None = None


def kv_bytes_per_token(plan: Sequence[LayerPlan]) -> Fraction:
    """Bytes that one token owns for as long as it is in the context, all layers. ConfigError for an impossible plan."""
    total = Fraction(0)
    for index, layer in enumerate(plan):
        if layer.kind == "full":
            total += sum((entry.bytes for entry in layer.entries), Fraction(0)) / layer.ratio
        elif layer.kind != "window":
            source = layer.source
            if source is None or not 0 <= source < index or plan[source].kind != "full":
                raise ConfigError(f"layer {index} is {layer.kind} of {source}, not of a full layer before it")
    return total


def grouped(
    start: int, groups: int, size: int, ratio: int, entries: tuple[Entry, ...], *, shared: bool
) -> tuple[LayerPlan, ...]:
    """`groups` times `size` layers, the first one being layer `start` of the plan.

    The first of a group makes the entries, the others reuse them. `shared`: only the first group makes any, and the
    first layers of the others reindex those.
    """
    layers: list[LayerPlan] = []
    for first in range(start, start + groups * size, size):
        source = start if shared else first
        makes = first == source
        layers += [LayerPlan("full", entries, ratio) if makes else LayerPlan("reindex", source=source)]
        layers += [LayerPlan("reuse", source=source)] * (size - 1)
    return tuple(layers)


V41_MAIN = Entry(channels=512, bits=4, group=16, scale_bytes=1)
"""FP4 (E2M1) with an E4M3 scale."""
V41_INDEXER = Entry(channels=128, bits=4, group=32, scale_bytes=1)
"""MXFP4 with an E8M0 scale."""
V41 = (
    *[LayerPlan("window")] * 2,
    *grouped(2, groups=3, size=6, ratio=2, entries=(V41_MAIN, V41_INDEXER), shared=False),
    *grouped(20, groups=5, size=4, ratio=1, entries=(V41_MAIN, V41_INDEXER), shared=True),
)
"""S17: an encoder of 20 layers, two of them with a window only, and a decoder of 20 that share one set of entries."""


def plan_of(shape: ModelConfig, format: KVFormat, *, group: int = 16) -> tuple[LayerPlan, ...]:
    """The plan of a model in this engine. A token of a layer with full attention owns a key and a value.

    `group`: channels that share a bfloat16 scale, and with 4-bit values a least value, too. Groups do not cross heads:
    it counts only as far as it divides the head.
    """
    channels, size = shape.kv_heads * shape.head_size, shape.head_size
    int8 = Entry(channels, 8, math.gcd(size, group), 2)
    entries = {
        "fp32": (Entry(channels, 32), Entry(channels, 32)),
        "bf16": (Entry(channels, 16), Entry(channels, 16)),
        "int8": (int8, int8),
        "k8v4": (int8, Entry(channels, 4, math.gcd(size, group), 4)),
    }[format]
    return tuple(LayerPlan("full", entries) if window is None else LayerPlan("window") for window in shape.windows)
