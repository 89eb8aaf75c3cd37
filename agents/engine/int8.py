"""Linear layers with 8-bit weights on the CPU (opt-in). Called by `models.llama`; imports torch.

w = least + scale * u, u in 0..255, for each group of 32 input channels of an output: from the smallest to the largest,
or even around zero, whichever errs less. Activations are 16-bit integers with a scale for each row and group: 8-bit
ones were tried and move one token in twenty. Sums within a group are exact integers.

Weights that were Q4_1 or Q8_0 lose nothing. Others err by half a percent: with SmolLM2's moved off its file's levels,
perplexity stays within 1% of fp32 but only 0.964 to 0.976 of the likeliest tokens agree. 10 bits would give 0.986
(simulated).
"""

import ctypes
from collections.abc import Callable
from ctypes import c_int32, c_void_p

import torch
from torch.nn.functional import pad as pad_with_zeros

from agents.engine.kernels.build import load
from schemas.errors import ConfigError

GROUP, LANES = 32, 16


def pack(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A linear layer from `weight` [outputs, inputs]. ConfigError without kernels, or for inputs no multiple of 32."""
    library = load()
    if library is None:
        raise ConfigError("int8 weights need the compiled kernels")
    outputs, inputs = weight.shape
    if inputs % GROUP:
        raise ConfigError(f"int8 weights need a multiple of {GROUP} input channels, not {inputs}")
    # A thousand rows at a time: what is computed on the way takes several times the weights' memory.
    parts = map(quantise, pad_with_zeros(weight, (0, 0, 0, -outputs % LANES)).split(1024))
    packed, scales, leasts = (torch.cat(part) for part in zip(*parts, strict=True))
    run = library.int8_linear
    run.argtypes, run.restype = [c_void_p, c_int32, c_int32, c_int32, *[c_void_p] * 5], None
    return lambda x: _run(run, x, packed, scales, leasts)[:, :outputs]


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As int8.c reads them: u [outputs / 16, inputs / 2, 16, 2]; scales and leasts [outputs / 16, inputs / 32, 16]."""
    grouped = weight.to(torch.float32).unflatten(1, (-1, GROUP))
    least, most = grouped.aminmax(dim=-1, keepdim=True)
    largest = grouped.abs().amax(dim=-1, keepdim=True)
    plain = _levels(grouped, least, (most - least) / 255)
    even = _levels(grouped, -largest, largest / 127)
    better = even[0] < plain[0]
    _, u, least, scale = (torch.where(better, *both) for both in zip(even, plain, strict=True))
    pairs = u.flatten(1).to(torch.uint8).unflatten(1, (-1, 2)).unflatten(0, (-1, LANES))
    scales, leasts = (x.unflatten(0, (-1, LANES)).transpose(1, 2).contiguous() for x in (scale[..., 0], least[..., 0]))
    return pairs.transpose(1, 2).contiguous(), scales, leasts


def _levels(grouped: torch.Tensor, least: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Squared error of each group, u, least and scale."""
    u = ((grouped - least) / torch.where(scale > 0, scale, 1.0)).round().clamp(0, 255)
    return (least + scale * u - grouped).square().sum(-1, keepdim=True), u, least, scale


def _run(
    run: "ctypes._NamedFuncPointer",
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    leasts: torch.Tensor,
) -> torch.Tensor:
    x = x.contiguous()
    rows, inputs = x.shape
    outputs = len(packed) * LANES
    out = torch.empty(rows, outputs)
    scratch = torch.empty(rows * inputs * 2 + rows * (inputs // GROUP) * 8, dtype=torch.uint8)
    pointers = [tensor.data_ptr() for tensor in (packed, scales, leasts, out, scratch)]
    run(x.data_ptr(), rows, inputs, outputs, *pointers)
    return out
