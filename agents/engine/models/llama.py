"""The Llama decoder (RMSNorm, rotary positions, grouped-query attention, SwiGLU), as a function of rows of tokens.

Also Mistral (sliding windows), Qwen2 (biases on q, k and v) and Qwen3 (norms on q and k). Called by `runner`. Rows of
many sequences go through the products together; the blocks in `Cache` keep them apart. Products: fp16 weights packed
for fbgemm (activations and sums fp32), int8, plain fp32, or bfloat16 on a CUDA device.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.functional import linear, pad

from agents.engine.accounting import KVFormat
from agents.engine.attention import Heads, Span, TorchKernels
from agents.engine.config import ModelConfig, inverse_frequencies
from agents.engine.kernels.build import load
from agents.engine.kernels.native import NativeKernels
from agents.engine.kv import KVStore, layout
from agents.engine.sequence import BLOCK
from agents.engine.weights import Read

log = logging.getLogger(__name__)

Precision = Literal["fp16", "fp32", "bf16", "int8"]
Linear = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """One decoder layer; q, k and v are one product, gate and up another."""

    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Cache:
    """Keys and values of all sequences: of layers with full attention, and of sliding-window layers."""

    full: KVStore
    window: KVStore


class Llama:
    """A loaded decoder."""

    def __init__(
        self, shape: ModelConfig, read: Read, precision: Precision, kv: KVFormat = "int8", device: str = "cpu"
    ) -> None:
        """`read` gives the tensors, one at a time, so that loading never holds the whole model in fp32.

        Where C can be compiled and the device is the CPU, attention and norms run in `kernels`, else in torch.
        """
        self.shape, self.precision, self.kv = shape, precision, kv
        self.device = device
        pack = _PACKERS[precision]

        def place(name: str) -> torch.Tensor:
            return read(name).to(device)

        self._layers = [_layer(place, f"model.layers.{i}", pack) for i in range(shape.layers)]
        self._norm = place("model.norm.weight")
        embedding = place("model.embed_tokens.weight")
        self._head = pack(embedding if shape.tied else place("lm_head.weight"))
        halves = {"fp32": torch.float32, "bf16": torch.bfloat16}
        self._embedding = embedding.to(halves.get(precision, torch.float16))
        heads = [_heads(shape, place, i) for i in range(shape.layers)]
        self._kernels = _kernels(heads, shape, kv, device)
        # Where each layer's keys and values are: in the full or the window store, at which place.
        self._windowed = [window is not None for window in shape.windows]
        self._places = [self._windowed[:i].count(windowed) for i, windowed in enumerate(self._windowed)]

    @property
    def native(self) -> bool:
        """Whether the C kernels run."""
        return isinstance(self._kernels, NativeKernels)

    @property
    def kv_bytes_per_token(self) -> float:
        """Memory of one token's keys and values, all layers, sliding-window ones included."""
        shape = self.shape
        return layout(self.kv, shape.head_size).head_bytes * shape.kv_heads * shape.layers / BLOCK

    @property
    def kv_layout(self) -> str:
        """Names the bytes of its keys and values: equal for models whose paused requests fit each other."""
        shape = self.shape
        windows = "-".join("" if window is None else str(window) for window in shape.windows)
        return f"{shape.layers}x{shape.kv_heads}x{shape.head_size} {self.kv} blocks of {BLOCK}, windows {windows}"

    def new_cache(self, blocks: int, window_blocks: int = 0) -> Cache:
        """Room for keys and values."""
        shape, windowed = self.shape, sum(self._windowed)
        stores = [
            KVStore(layers, shape.kv_heads, shape.head_size, count, self.kv, self.device)
            for layers, count in ((shape.layers - windowed, blocks), (windowed, window_blocks))
        ]
        return Cache(*stores)

    @torch.inference_mode()
    def hidden(self, ids: list[int], spans: list[Span], cache: Cache) -> torch.Tensor:
        """Last hidden states, [rows, hidden], of tokens `ids`, those of the spans one after the other.

        Writes the tokens' keys and values into the spans' blocks.
        """
        kernels, eps, rows = self._kernels, self.shape.norm_eps, len(ids)
        attend = kernels.attention(spans)
        x = self._embedding[torch.tensor(ids, device=self.device)].to(torch.float32)
        x = pad(x, (0, 0, 0, self._padding(rows)))
        delta = None
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(kernels.add_norm(x, delta, layer.input_norm, eps))
            store = cache.window if self._windowed[index] else cache.full
            delta = layer.output(attend(index, store, self._places[index], qkv))
            gate_up = layer.gate_up(kernels.add_norm(x, delta, layer.mlp_norm, eps))
            delta = layer.down(kernels.silu_mul(gate_up))
        return kernels.add_norm(x, delta, self._norm, eps)[:rows]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocab_size] from last hidden states, on the CPU."""
        return self._head(pad(hidden, (0, 0, 0, self._padding(len(hidden)))))[: len(hidden)].cpu()

    def _padding(self, rows: int) -> int:
        """Rows to add so that no row's result depends on how many others there are.

        fbgemm's fp16 kernels take 6 rows at a time and what is left with others; those for 1 and 2 rows sum in another
        order (measured on AVX2 for 1 to 256 rows: a rest of 0, 3, 4 or 5 gives equal bits). Whole sixes are also the
        fastest: 36 rows take 8% less time than 33.
        """
        if self.precision != "fp16":
            return 0
        return -rows % 6 if rows > 12 else (0, 2, 1, 0, 0, 0)[rows % 6]


def _layer(read: Read, name: str, pack: Callable[[torch.Tensor], Linear]) -> Layer:
    def stacked(*parts: str) -> Linear:
        return pack(torch.cat([read(f"{name}.{part}.weight") for part in parts]))

    return Layer(
        input_norm=read(f"{name}.input_layernorm.weight"),
        qkv=stacked("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output=stacked("self_attn.o_proj"),
        mlp_norm=read(f"{name}.post_attention_layernorm.weight"),
        gate_up=stacked("mlp.gate_proj", "mlp.up_proj"),
        down=stacked("mlp.down_proj"),
    )


def _heads(shape: ModelConfig, read: Read, index: int) -> Heads:
    name = f"model.layers.{index}.self_attn"
    biases = [f"{name}.{part}_proj.bias" for part in "qkv"] if shape.qkv_bias else []
    return Heads(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        size=shape.head_size,
        window=shape.windows[index],
        norm_eps=shape.norm_eps,
        bias=torch.cat([read(bias) for bias in biases]) if biases else None,
        q_norm=read(f"{name}.q_norm.weight") if shape.qk_norm else None,
        k_norm=read(f"{name}.k_norm.weight") if shape.qk_norm else None,
    )


def _kernels(heads: list[Heads], shape: ModelConfig, kv: KVFormat, device: str) -> TorchKernels | NativeKernels:
    angles = torch.outer(
        torch.arange(shape.context, dtype=torch.float64), torch.tensor(inverse_frequencies(shape), dtype=torch.float64)
    )
    cos, sin = (x.to(torch.float32).to(device) for x in (angles.cos(), angles.sin()))
    library = load() if device == "cpu" else None
    if library is None or shape.hidden % 8 or shape.intermediate % 8:
        return TorchKernels(heads, cos, sin)
    return NativeKernels(library, heads, layout(kv, shape.head_size), cos, sin)


def _fp16(weight: torch.Tensor) -> Linear:
    packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous())
    run = torch.ops.quantized.linear_dynamic_fp16
    return lambda x: run(x, packed)


def _fp32(weight: torch.Tensor) -> Linear:
    return lambda x: linear(x, weight)


def _bf16(weight: torch.Tensor) -> Linear:
    half = weight.to(torch.bfloat16)
    return lambda x: linear(x.to(torch.bfloat16), half).to(torch.float32)


def _int8(weight: torch.Tensor) -> Linear:
    from agents.engine.int8 import pack

    return pack(weight)


_PACKERS: dict[Precision, Callable[[torch.Tensor], Linear]] = {
    "fp16": _fp16,
    "fp32": _fp32,
    "bf16": _bf16,
    "int8": _int8,
}
