"""What is read from config.json and GGUF headers: against `transformers`' own configurations, and what is refused."""

import json
import math
from dataclasses import replace

import pytest
import torch

from agents.engine.config import Llama3Rope, ModelConfig, from_folder, from_gguf, inverse_frequencies
from schemas.errors import ConfigError

SIZES = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
HEADER = {
    "general.architecture": "qwen2",
    "qwen2.block_count": 4,
    "qwen2.embedding_length": 48,
    "qwen2.feed_forward_length": 80,
    "qwen2.attention.head_count": 6,
    "qwen2.attention.head_count_kv": 2,
    "qwen2.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen2.context_length": 512,
    "tokenizer.ggml.tokens": ["x"] * 160,
}
PLAIN = ModelConfig(
    layers=4,
    hidden=48,
    intermediate=80,
    heads=6,
    kv_heads=2,
    head_size=8,
    vocab_size=160,
    context=512,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    tied=False,
)


def read(folder, raw) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(raw))
    return from_folder(folder)


@pytest.mark.parametrize(
    ("kind", "change", "windows"),
    [
        ("llama", {}, None),
        ("llama", {"rope_parameters": LLAMA3, "head_dim": 16, "tie_word_embeddings": True}, None),
        ("mistral", {"sliding_window": 8}, (8, 8, 8, 8)),
        ("mistral", {"sliding_window": None}, None),
        ("mistral", {}, (4096,) * 4),
        ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, None),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}, (None, None, None, 8)),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 0}, None),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "head_dim": 16}, None),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 0}, (4096,) * 4),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (8, None, 8, None),
        ),
    ],
)
def test_agrees_with_transformers(tmp_path, kind, change, windows):
    from transformers import CONFIG_MAPPING
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = CONFIG_MAPPING[kind](**SIZES, **change)
    theirs.save_pretrained(tmp_path)
    ours = from_folder(tmp_path)
    # The file as people write it, without what transformers fills in, means the same.
    assert read(tmp_path, {"model_type": kind} | SIZES | change) == ours
    heads = theirs.num_attention_heads
    assert ours == ModelConfig(
        layers=theirs.num_hidden_layers,
        hidden=theirs.hidden_size,
        intermediate=theirs.intermediate_size,
        heads=heads,
        kv_heads=theirs.num_key_value_heads,
        head_size=getattr(theirs, "head_dim", None) or theirs.hidden_size // heads,
        vocab_size=theirs.vocab_size,
        context=theirs.max_position_embeddings,
        rope_theta=theirs.rope_parameters["rope_theta"],
        norm_eps=theirs.rms_norm_eps,
        tied=theirs.tie_word_embeddings,
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        windows=windows or (),
        rope=Llama3Rope(8.0, 1.0, 4.0, 64) if "factor" in theirs.rope_parameters else None,
    )
    assert ours.window == next((w for w in windows or () if w), None)
    if kind != "mistral":
        types = getattr(theirs, "layer_types", None) or ["full_attention"] * 4
        assert [one == "sliding_attention" for one in types] == [window is not None for window in ours.windows]
    expected = LlamaRotaryEmbedding(theirs).inv_freq
    torch.testing.assert_close(torch.tensor(inverse_frequencies(ours)), expected, rtol=1e-6, atol=0.0)


def test_older_files_name_the_scaling_otherwise(tmp_path):
    old = {key: value for key, value in LLAMA3.items() if key not in ("rope_type", "rope_theta")} | {"type": "llama3"}
    ours = read(tmp_path, {"model_type": "llama", "rope_theta": 5000.0, "rope_scaling": old} | SIZES)
    assert ours == read(tmp_path, {"model_type": "llama", "rope_parameters": LLAMA3} | SIZES)


def test_llama3_keeps_short_waves_and_stretches_long_ones():
    shape = replace(PLAIN, head_size=128, rope=Llama3Rope(8.0, 1.0, 4.0, 256))
    plain = inverse_frequencies(replace(shape, rope=None))
    for before, after in zip(plain, inverse_frequencies(shape), strict=True):
        wave = 2 * math.pi / before
        if wave < 256 / 4:
            assert after == before
        elif wave > 256 / 1:
            assert after == pytest.approx(before / 8)
        else:
            assert before / 8 < after < before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe'"),
        ({"model_type": None}, "model_type"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "RoPE scaling 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "RoPE scaling 'linear'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "for some layers"),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}}, "impossible RoPE"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 4}, "without a sliding_window"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"model_type": "mistral", "sliding_window": -4}, "sliding window of -4"),
        ({"hidden_size": None}, "config.json"),
        ({"num_attention_heads": 0}, "config.json"),
        ({"num_key_value_heads": 4}, "impossible model sizes"),
        ({"head_dim": 7}, "impossible model sizes"),
        ({"vocab_size": "many"}, "many"),
        ({"rope_parameters": "fast"}, "config.json"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, change, message):
    read(tmp_path, {"model_type": "llama"} | SIZES)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, {"model_type": "llama"} | SIZES | change)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": "llama"}'])
def test_a_broken_file_is_a_config_error(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        from_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        ({}, (None,) * 4),
        ({"qwen2.attention.sliding_window": 8}, (8, 8, 8, 8)),
        ({"qwen2.attention.sliding_window": 8, "qwen2.attention.sliding_window_pattern": 2}, (8, None, 8, None)),
        (
            {"qwen2.attention.sliding_window": 8, "qwen2.attention.sliding_window_pattern": [False, True, True, False]},
            (None, 8, 8, None),
        ),
    ],
)
def test_gguf_headers(change, windows):
    shape = from_gguf(HEADER | change, ["blk.0.attn_q.bias", "output.weight"])
    assert shape == replace(PLAIN, qkv_bias=True, windows=windows)
    assert from_gguf(HEADER | change, []).tied


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "qwen3moe"}, "architecture 'qwen3moe'"),
        ({"qwen2.rope.scaling.type": "yarn"}, "RoPE scaling 'yarn'"),
        ({"qwen2.expert_count": 8}, "mixture of experts"),
        ({"split.count": 2}, "several files"),
        ({"qwen2.rope.dimension_count": 4}, "another size"),
        ({"qwen2.attention.value_length": 16}, "another size"),
        ({"qwen2.attention.head_count_kv": [2, 2, 2, 2]}, "header is wrong"),
        ({"qwen2.attention.sliding_window": 8, "qwen2.attention.sliding_window_pattern": [True]}, "one window each"),
        ({"qwen2.block_count": 0}, "impossible model sizes"),
    ],
)
def test_what_a_gguf_file_must_not_ask_for(change, message):
    with pytest.raises(ConfigError, match=message):
        from_gguf(HEADER | change, [])
    with pytest.raises(ConfigError, match="lacks 'context_length'"):
        from_gguf({key: value for key, value in HEADER.items() if key != "qwen2.context_length"}, [])
