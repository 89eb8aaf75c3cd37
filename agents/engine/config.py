"""The shape of a decoder of the Llama family, read from a checkpoint. For `weights`, `models.llama` and `accounting`.

Llama (also with Llama 3.1's RoPE scaling), Mistral (sliding windows), Qwen2 (biases on q, k and v) and Qwen3 (norms on
q and k). What a checkpoint asks for beyond that is refused by name, never ignored. No torch.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError


@dataclass(frozen=True)
class Llama3Rope:
    """Scaling of rotary frequencies for contexts longer than the `original_context` tokens of pretraining.

    As in Llama 3.1 ("The Llama 3 Herd of Models", 2024, section 3.4.2; `rope_type` "llama3" in transformers).
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of one decoder. `head_size` is per head; `kv_heads` divides `heads` (grouped-query attention).

    `qkv_bias`: q, k and v have biases. `qk_norm`: RMSNorm over each head of q and k, before RoPE. `windows`: for each
    layer the sliding window, or None for full attention; a window of n tokens is the token itself and the n - 1 before
    it. All windows of a model are equal. Left empty, it means full attention in every layer. `rope_factors`: divisors
    of the head_size / 2 rotary frequencies, as GGUF files state them in place of `rope`.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    context: int
    rope_theta: float
    norm_eps: float
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    rope: Llama3Rope | None = None
    rope_factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """ConfigError when the sizes do not fit together."""
        sizes = (self.layers, self.hidden, self.intermediate, self.heads, self.kv_heads, self.vocab_size, self.context)
        if min(sizes) < 1 or self.head_size < 2 or self.head_size % 2 or self.heads % self.kv_heads:
            raise ConfigError(f"impossible model sizes: {self}")
        if not self.windows:
            # Frozen, so set this way; whoever reads `windows` finds one entry for each layer.
            object.__setattr__(self, "windows", (None,) * self.layers)
        if len(self.windows) != self.layers or len({w for w in self.windows if w is not None}) > 1:
            raise ConfigError(f"{self.layers} layers need one window each, all of one size; there are {self.windows}")
        if self.window is not None and self.window < 1:
            raise ConfigError(f"a sliding window of {self.window} tokens is impossible")
        if self.rope_factors is not None and len(self.rope_factors) != self.head_size // 2:
            raise ConfigError(f"{len(self.rope_factors)} RoPE factors for {self.head_size // 2} frequencies")

    @property
    def window(self) -> int | None:
        """Tokens of the sliding window; None when every layer has full attention."""
        return next((window for window in self.windows if window is not None), None)


def inverse_frequencies(shape: ModelConfig) -> list[float]:
    """Rotary frequencies, radians per token, [head_size / 2].

    theta^(-2i / head_size) (Su et al. 2021, "RoFormer"), divided by `rope_factors` or scaled as `Llama3Rope` says: wave
    lengths above original_context / low_freq_factor are stretched by `factor`, those below original_context /
    high_freq_factor stay, in between the frequency is interpolated.
    """
    size, rope = shape.head_size, shape.rope
    plain = [shape.rope_theta ** (-i / size) for i in range(0, size, 2)]
    if shape.rope_factors is not None:
        plain = [frequency / factor for frequency, factor in zip(plain, shape.rope_factors, strict=True)]
    return plain if rope is None else [_llama3(frequency, rope) for frequency in plain]


def _llama3(frequency: float, rope: Llama3Rope) -> float:
    turns = rope.original_context * frequency / (2 * math.pi)
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = min(max(smooth, 0.0), 1.0)
    return kept * frequency + (1 - kept) * frequency / rope.factor


def from_folder(folder: Path) -> ModelConfig:
    """From the `config.json` of a Hugging Face checkpoint. ConfigError names what is missing or not supported."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: not a checkpoint folder")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(raw, dict):
            raise ConfigError("no JSON object")
        return _from_json(raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except KeyError as error:
        raise ConfigError(f"{path}: {error} is missing") from error
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _from_json(raw: dict[str, Any]) -> ModelConfig:
    kind = raw.get("model_type")
    if kind not in ("llama", "mistral", "qwen2", "qwen3"):
        raise ConfigError(f"model_type {kind!r} is not supported, only llama, mistral, qwen2 and qwen3")
    if raw.get("attention_bias") or raw.get("mlp_bias"):
        raise ConfigError("biases of output and MLP projections (attention_bias, mlp_bias) are not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act {raw['hidden_act']!r} is not supported, only 'silu'")
    if raw.get("quantization_config"):
        raise ConfigError("quantised safetensors (quantization_config) are not supported")
    heads, hidden, layers = (int(raw[k]) for k in ("num_attention_heads", "hidden_size", "num_hidden_layers"))
    theta, rope = _rope(raw)
    return ModelConfig(
        layers=layers,
        hidden=hidden,
        intermediate=int(raw["intermediate_size"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        # Qwen3's head size does not follow from the others; transformers takes 128 where it is not stated.
        head_size=int(raw.get("head_dim") or (128 if kind == "qwen3" else hidden // heads)),
        vocab_size=int(raw["vocab_size"]),
        context=int(raw["max_position_embeddings"]),
        rope_theta=theta,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tied=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        windows=_windows(raw, kind, layers),
        rope=rope,
    )


def _rope(raw: dict[str, Any]) -> tuple[float, Llama3Rope | None]:
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if any(isinstance(value, dict) for value in rope.values()):
        raise ConfigError("RoPE parameters of their own for some layers are not supported")
    if (rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ConfigError("partial_rotary_factor is not supported")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ConfigError(f"RoPE scaling {kind!r} is not supported, only 'llama3'")
    original = rope.get("original_max_position_embeddings") or raw["max_position_embeddings"]
    factor, low, high = (float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    if factor <= 0 or not 0 < low < high:
        raise ConfigError(f"impossible RoPE scaling: {rope}")
    return theta, Llama3Rope(factor, low, high, int(original))


def _windows(raw: dict[str, Any], kind: str, layers: int) -> tuple[int | None, ...]:
    # Defaults of transformers: 4096 tokens, and in Qwen only from layer 28 on, only when switched on.
    qwen = kind in ("qwen2", "qwen3")
    on = kind == "mistral" or (qwen and raw.get("use_sliding_window", False))
    window = raw.get("sliding_window", 4096) if on else None
    first = int(raw.get("max_window_layers", 28)) if qwen else 0
    usual = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
    types = raw.get("layer_types") or usual
    if types != usual and not qwen:
        raise ConfigError(f"layer_types of a {kind} model are not supported")
    if len(types) != layers or not set(types) <= {"sliding_attention", "full_attention"}:
        raise ConfigError(f"layer_types {types} are not supported")
    if "sliding_attention" in types and not window:
        raise ConfigError("layer_types has sliding_attention without a sliding_window")
    return tuple(int(window) if window and one == "sliding_attention" else None for one in types)


def from_gguf(fields: Mapping[str, Any], tensors: Collection[str]) -> ModelConfig:
    """From the key/value pairs and tensor names of a GGUF file. ConfigError names what is missing or not supported."""
    kind = fields.get("general.architecture")
    if kind not in ("llama", "qwen2", "qwen3"):
        raise ConfigError(f"GGUF architecture {kind!r} is not supported, only llama, qwen2 and qwen3")
    try:
        return _from_fields(fields, kind, tensors)
    except KeyError as error:
        raise ConfigError(f"the GGUF header lacks {error}") from error
    except (TypeError, ZeroDivisionError) as error:
        raise ConfigError(f"the GGUF header is wrong: {error}") from error


def _from_fields(fields: Mapping[str, Any], kind: str, tensors: Collection[str]) -> ModelConfig:
    own = {key.removeprefix(f"{kind}."): value for key, value in fields.items()}
    if own.get("rope.scaling.type", "none") != "none":
        raise ConfigError(f"GGUF with RoPE scaling {own['rope.scaling.type']!r} is not supported")
    if own.get("expert_count"):
        raise ConfigError("GGUF with a mixture of experts is not supported")
    if own.get("split.count", 1) > 1:
        raise ConfigError("GGUF in several files is not supported; merge them with llama-gguf-split")
    heads, hidden, layers = (int(own[k]) for k in ("attention.head_count", "embedding_length", "block_count"))
    size = int(own.get("attention.key_length", hidden // heads))
    if int(own.get("attention.value_length", size)) != size or int(own.get("rope.dimension_count", size)) != size:
        raise ConfigError("GGUF with values or rotated parts of another size than the keys is not supported")
    return ModelConfig(
        layers=layers,
        hidden=hidden,
        intermediate=int(own["feed_forward_length"]),
        heads=heads,
        kv_heads=int(own.get("attention.head_count_kv", heads)),
        head_size=size,
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        context=int(own["context_length"]),
        rope_theta=float(own.get("rope.freq_base", 10_000.0)),
        norm_eps=float(own["attention.layer_norm_rms_epsilon"]),
        tied="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        windows=_gguf_windows(own, layers),
    )


def _gguf_windows(own: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    window, pattern = int(own.get("attention.sliding_window", 0)), own.get("attention.sliding_window_pattern", 0)
    if not window:
        return ()
    if isinstance(pattern, list):
        return tuple(window if sliding else None for sliding in pattern)
    # A number n: every n-th layer has full attention (llama.cpp's set_swa_pattern); 0: none has.
    return tuple(None if pattern and i % pattern == pattern - 1 else window for i in range(layers))
