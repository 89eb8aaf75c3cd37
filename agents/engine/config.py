"""The shape of a Llama-family decoder, read from a checkpoint. Called by `weights` and `load`; no torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of one decoder. `head_size` is per head; `kv_heads` divides `heads` (grouped-query attention)."""

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

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values that one token owns, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * element_bytes


def from_gguf(fields: Mapping[str, Any], tied: bool) -> ModelConfig:
    """From the key/value pairs of a GGUF file. ConfigError when it is not a plain Llama."""
    if fields.get("general.architecture") != "llama":
        raise ConfigError(f"GGUF architecture {fields.get('general.architecture')!r} is not supported, only 'llama'")
    if fields.get("llama.rope.scaling.type", "none") != "none":
        raise ConfigError("GGUF with RoPE scaling is not supported")
    heads, hidden = int(fields["llama.attention.head_count"]), int(fields["llama.embedding_length"])
    return ModelConfig(
        layers=int(fields["llama.block_count"]),
        hidden=hidden,
        intermediate=int(fields["llama.feed_forward_length"]),
        heads=heads,
        kv_heads=int(fields.get("llama.attention.head_count_kv", heads)),
        head_size=int(fields.get("llama.attention.key_length", hidden // heads)),
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        context=int(fields["llama.context_length"]),
        rope_theta=float(fields.get("llama.rope.freq_base", 10_000.0)),
        norm_eps=float(fields["llama.attention.layer_norm_rms_epsilon"]),
        tied=tied,
    )


def from_folder(folder: Path) -> ModelConfig:
    """From the `config.json` of a Hugging Face checkpoint. ConfigError names what is not supported."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: not a checkpoint folder")
    raw = json.loads(path.read_text(encoding="utf-8"))
    if raw.get("model_type") != "llama":
        raise ConfigError(f"{path}: model_type {raw.get('model_type')!r} is not supported, only 'llama'")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ConfigError(f"{path}: RoPE scaling {kind!r} is not supported")
    if raw.get("attention_bias") or raw.get("mlp_bias"):
        raise ConfigError(f"{path}: projection biases are not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{path}: hidden_act {raw['hidden_act']!r} is not supported, only 'silu'")
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    return ModelConfig(
        layers=int(raw["num_hidden_layers"]),
        hidden=hidden,
        intermediate=int(raw["intermediate_size"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_size=int(raw.get("head_dim") or hidden // heads),
        vocab_size=int(raw["vocab_size"]),
        context=int(raw.get("max_position_embeddings", 2048)),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tied=bool(raw.get("tie_word_embeddings", False)),
    )
