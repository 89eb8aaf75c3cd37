"""The Llama decoder (RMSNorm, rotary positions, grouped-query attention, SwiGLU), as a function of rows of tokens.

Called by `agents.engine.runner`. Rows of many sequences go through the linear layers together; `attention.Attention`
keeps them apart. Weights are fp16 and packed for fbgemm (activations and sums fp32), or plain fp32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.functional import linear, pad, rms_norm, silu

from agents.engine.attention import KV, Attention, Span
from agents.engine.config import ModelConfig
from agents.engine.weights import Read

Precision = Literal["fp16", "fp32"]
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


class Llama:
    """A loaded decoder."""

    def __init__(
        self, shape: ModelConfig, read: Read, precision: Precision, kv_dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """`read` gives the tensors, one at a time, so that loading never holds the whole model in fp32.

        bfloat16 keys and values take half of fp32's memory and the same time (fp16 ones take four times as long in
        torch's CPU attention).
        """
        self._kv_dtype = kv_dtype
        self.shape = shape
        pack = _fp16 if precision == "fp16" else _fp32
        self._layers = [_layer(read, f"model.layers.{i}", pack) for i in range(shape.layers)]
        self._norm = read("model.norm.weight")
        embedding = read("model.embed_tokens.weight")
        self._head = pack(embedding if shape.tied else read("lm_head.weight"))
        self._embedding = embedding.to(torch.float16) if precision == "fp16" else embedding
        self._cos, self._sin = _rotations(shape)

    @property
    def kv_bytes_per_token(self) -> int:
        """Memory of one token's keys and values, all layers."""
        return self.shape.kv_bytes_per_token(self._kv_dtype.itemsize)

    def new_kv(self, capacity: int) -> KV:
        """An empty buffer for `capacity` tokens."""
        return KV(self.shape, capacity, self._kv_dtype)

    @torch.inference_mode()
    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, spans: list[Span]) -> torch.Tensor:
        """Last hidden states, [rows, hidden], of tokens `ids` [rows] at `positions` [rows]; `spans` cover the rows.

        Writes the tokens' keys and values into the spans' buffers.
        """
        shape, attend = self.shape, Attention(spans)
        rows, padding = len(ids), _padding(len(ids))
        x = pad(self._embedding[ids].to(torch.float32), (0, 0, 0, padding))
        positions = pad(positions, (0, padding))
        cos, sin = self._cos[positions], self._sin[positions]
        turned, size, eps = shape.heads + shape.kv_heads, shape.head_size, shape.norm_eps
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(rms_norm(x, (shape.hidden,), layer.input_norm, eps)).view(len(x), -1, size)
            qkv[:, :turned] = _rotate(qkv[:, :turned], cos, sin)
            kv = qkv[:, shape.heads :].view(len(x), 2, shape.kv_heads, size)
            x = x + layer.output(attend(index, qkv[:, : shape.heads], kv))
            gate, up = layer.gate_up(rms_norm(x, (shape.hidden,), layer.mlp_norm, eps)).chunk(2, dim=-1)
            x = x + layer.down(silu(gate) * up)
        return rms_norm(x[:rows], (shape.hidden,), self._norm, eps)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocab_size] from last hidden states."""
        return self._head(pad(hidden, (0, 0, 0, _padding(len(hidden)))))[: len(hidden)]


def _padding(rows: int) -> int:
    """Rows to add so that no row's result depends on how many others there are.

    fbgemm's fp16 kernels take 6 rows at a time and what is left with others; those for 1 and 2 rows sum in another
    order (measured on AVX2 for 1 to 256 rows: a rest of 0, 3, 4 or 5 gives equal bits). At most two rows are added.
    """
    return (2, 1)[rows % 6 - 1] if rows % 6 in (1, 2) else 0


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


def _fp16(weight: torch.Tensor) -> Linear:
    packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous())
    run = torch.ops.quantized.linear_dynamic_fp16
    return lambda x: run(x, packed)


def _fp32(weight: torch.Tensor) -> Linear:
    return lambda x: linear(x, weight)


def _rotations(shape: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, [context, 1, head_size]: Su et al., RoFormer (2021), halves instead of interleaved pairs."""
    steps = torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), shape.rope_theta**-steps)
    angles = torch.cat([angles, angles], dim=-1).unsqueeze(1)
    return angles.cos().to(torch.float32), angles.sin().to(torch.float32)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
