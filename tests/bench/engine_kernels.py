"""Engine bench: kernels launched per decoder layer in steady state (S19), from the torch profiler.

What is counted. A kernel is one pass over tensors by a compiled routine:
- an operation of torch that computes, moves or fills (aten::mm, aten::mul, aten::copy_, aten::index,
  quantized::linear_dynamic_fp16 ...), counted where it does the work: not aten::linear, but the aten::mm in it;
- a loop that torch.compile generated (named ...cpp_fused..., seen with its kernel profile on);
- a call of one of our C functions (agents/engine/kernels), each wrapped in a profiler range by this file.
Views, sizes, allocations and the wrappers of torch.compile are none. A product and what it copies first count apart.

Counts are differences of models with 3 layers and with 1, halved: embedding, last norm and what a step prepares once
drop out. Prefill is 128 tokens of one sequence, decode one token of each of 8 sequences with 100 tokens before it.

Three paths: `native`, what the engine runs on a CPU (C kernels, fp16 weights, int8 keys and values); `eager`, its torch
path (fp32), which is the reference and runs where C does not; `torch.compile`, what a compiler makes of a plain decoder
layer of the same shape with fp32 keys and values in one tensor: no blocks, no compression.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from engine_measure import BAR
from engine_share import without_c
from lines import say
from torch.autograd.profiler import record_function
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from agents.engine import files, weights
from agents.engine.accounting import KVFormat
from agents.engine.attention import Span
from agents.engine.models.llama import Llama, Precision
from agents.engine.sequence import BLOCK

FREE = """
alias as_strided chunk contiguous detach detach_ empty empty_like empty_strided expand expand_as flatten item lift_fresh
_local_scalar_dense movedim narrow new_empty numpy_T permute reshape _reshape_alias resize_ resolve_conj resolve_neg
result_type select slice split split_with_sizes squeeze swapaxes t to _to_copy transpose type_as unbind unflatten
_unsafe_view unsqueeze view view_as
"""
"""Operations of torch that do no work of their own."""
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear_dynamic_fp16", "_scaled_dot_product_flash_attention_for_cpu"}
"""These count whatever they call on their way."""
RANGE = "trajmill::"
SHORT, LONG = 1, 3
PREFILL, SEQUENCES, BEFORE = 128, 8, 100
LIMITS = {"prefill": 15, "decode": 11}
"""Fewer than these."""


def kernels() -> None:
    """Print the counts."""
    for stage, limit in LIMITS.items():
        eager = _per_layer(partial(_engine_step, stage, "fp32", "fp32", False))
        native = _per_layer(partial(_engine_step, stage, "fp16", "int8", True))
        compiled = _per_layer(partial(_compiled_step, stage))
        unit = "kernels per layer"
        figure = f"kernels_{stage}"
        say(f"{figure}_native", native, BAR, limit - 1, unit)
        say(f"{figure}_native_eager", native, "the engine's torch path, eager", eager, unit, None)
        peer = BAR + "; torch.compile of a plain layer"
        say(f"{figure}_compiled", compiled, peer, limit - 1, unit)


def _per_layer(step: Callable[[int], Callable[[], object]]) -> float:
    """Kernels that one more layer launches. `step` gives a step of a model with so many layers."""
    short, long = (sum(launched(step(layers)).values()) for layers in (SHORT, LONG))
    return (long - short) / (LONG - SHORT)


@torch.inference_mode()
def launched(run: Callable[[], object]) -> Counter[str]:
    """Kernels by name, of one call after two that warm up."""
    run()
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    found: Counter[str] = Counter()
    for event in profile.events():
        if event.cpu_parent is None:
            _count(event, found)
    return found


def _count(event: Any, found: Counter[str]) -> bool:
    """Add the kernels of an event and those in it; whether there were any."""
    within = [_count(child, found) for child in event.cpu_children]
    space, _, name = event.name.rpartition("::")
    if "cpp_fused" not in event.name and (not space or name in FREE.split() or "." in space):
        return any(within)
    if any(within) and name not in PRODUCTS:
        return True
    found[event.name] += 1
    return True


def _engine_step(
    stage: str, precision: Precision, kv: KVFormat, native: bool, layers: int
) -> Callable[[], torch.Tensor]:
    shape, read = weights.open_checkpoint(files.find(files.SMOLLM2))
    model = Llama(replace(shape, layers=layers, windows=shape.windows[:layers]), read, precision, kv)
    if native:
        _mark(model)
    else:
        without_c(model)
    count, width = (1, PREFILL // BLOCK) if stage == "prefill" else (SEQUENCES, BEFORE // BLOCK + 1)
    tables = [list(range(i * width, (i + 1) * width)) for i in range(count)]
    spans = [Span(table, 0, PREFILL) if stage == "prefill" else Span(table, BEFORE, 1) for table in tables]
    ids = [1000 + i for i in range(sum(span.count for span in spans))]
    cache = model.new_cache(count * width)
    return lambda: model.hidden(ids, spans, cache)


def _mark(model: Llama) -> None:
    """Let the profiler see the calls of C functions."""
    kernels: Any = model._kernels
    if not model.native:
        raise RuntimeError("the C kernels do not run here")
    for name in ("attend", "_add_norm", "_silu_mul"):
        setattr(kernels, name, _ranged(name.lstrip("_"), getattr(kernels, name)))


def _ranged(name: str, call: Callable[..., object]) -> Callable[..., None]:
    def marked(*arguments: object) -> None:
        with record_function(RANGE + name):
            call(*arguments)

    return marked


def _compiled_step(stage: str, layers: int) -> Callable[[], torch.Tensor]:
    import torch._inductor.config as inductor

    inductor.cpp.enable_kernel_profile = True
    count, rows, start = (1, PREFILL, 0) if stage == "prefill" else (SEQUENCES, 1, BEFORE)
    random = torch.Generator().manual_seed(1)
    shape, _ = weights.open_checkpoint(files.find(files.SMOLLM2))
    plain = [_PlainLayer(shape, count, 256, random) for _ in range(layers)]
    x = torch.randn(count, rows, shape.hidden, generator=random)
    places = torch.arange(start, start + rows)
    angles = torch.randn(rows, 1, shape.head_size // 2, generator=random)
    seen = torch.arange(256) <= places.unsqueeze(1)
    step = torch.compile(_plain_layers, fullgraph=True, dynamic=False)
    return lambda: step(x, plain, places, angles.cos(), angles.sin(), seen)


class _PlainLayer:
    """Random weights, and keys and values [sequences, kv_heads, capacity, size]."""

    def __init__(self, shape: Any, sequences: int, capacity: int, random: torch.Generator) -> None:
        def weight(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, generator=random) * 0.02

        self.heads, self.kv_heads, self.size, self.eps = shape.heads, shape.kv_heads, shape.head_size, shape.norm_eps
        self.norms = torch.ones(2, shape.hidden)
        self.qkv = weight((shape.heads + 2 * shape.kv_heads) * shape.head_size, shape.hidden)
        self.output = weight(shape.hidden, shape.heads * shape.head_size)
        self.gate_up = weight(2 * shape.intermediate, shape.hidden)
        self.down = weight(shape.hidden, shape.intermediate)
        self.keys, self.values = weight(2, sequences, shape.kv_heads, capacity, shape.head_size).unbind()


def _plain_layers(
    x: torch.Tensor,
    layers: Iterable[_PlainLayer],
    places: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    """Hidden states [sequences, rows, hidden] after all layers; new keys and values are put at `places` [rows]."""

    def rotate(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    for layer in layers:
        normed = rms_norm(x, x.shape[-1:], layer.norms[0], layer.eps)
        qkv = linear(normed, layer.qkv).unflatten(-1, (-1, layer.size))
        q, k, v = qkv.split([layer.heads, layer.kv_heads, layer.kv_heads], dim=2)
        layer.keys[:, :, places] = rotate(k).transpose(1, 2)
        layer.values[:, :, places] = v.transpose(1, 2)
        q = rotate(q).transpose(1, 2)
        out = scaled_dot_product_attention(q, layer.keys, layer.values, attn_mask=seen, enable_gqa=True)
        x = x + linear(out.transpose(1, 2).flatten(2), layer.output)
        gate, up = linear(rms_norm(x, x.shape[-1:], layer.norms[1], layer.eps), layer.gate_up).chunk(2, dim=-1)
        x = x + linear(silu(gate) * up, layer.down)
    return x
