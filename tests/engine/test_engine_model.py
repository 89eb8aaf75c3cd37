"""The decoder against `transformers` (an oracle here, never imported by the product), and the weights' quality."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from agents.engine import weights
from agents.engine.attention import Span
from agents.engine.config import from_folder
from agents.engine.models.llama import Llama
from agents.engine.sequence import BLOCK
from schemas.errors import ConfigError, InputError

TEXT = (Path(__file__).parent / "fixed_text.txt").read_text(encoding="utf-8").replace("\n", " ").strip()


def logits_of(model: Llama, ids: list[int], chunk: int) -> torch.Tensor:
    table = list(range(-(-len(ids) // BLOCK)))
    cache = model.new_cache(len(table))
    rows = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        rows.append(model.logits(model.hidden(part, [Span(table, start, len(part))], cache)))
    return torch.cat(rows)


def small_checkpoint(folder, *, tied: bool, shard: str):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=160,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_theta=5000.0,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    oracle = LlamaForCausalLM(config).eval()
    oracle.save_pretrained(folder, max_shard_size=shard)
    return oracle


@pytest.mark.parametrize(("tied", "shard"), [(True, "1GB"), (False, "60KB")])
def test_small_random_model_agrees_with_transformers(tmp_path, tied, shard):
    oracle = small_checkpoint(tmp_path, tied=tied, shard=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "60KB")
    shape, read = weights.open_checkpoint(tmp_path)
    model = Llama(shape, read, "fp32", "fp32")
    ids = torch.randint(0, 160, (70,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = oracle(torch.tensor([ids])).logits[0].detach()
    for chunk in (70, 16, 1):
        assert (logits_of(model, ids, chunk) - expected).abs().max() < 2e-4 * expected.abs().max()


def test_batched_rows_of_several_sequences_equal_single_ones(tmp_path):
    small_checkpoint(tmp_path, tied=True, shard="1GB")
    model = Llama(*weights.open_checkpoint(tmp_path), "fp32", "fp32")
    lists = [list(range(i, i + n)) for i, n in [(3, 20), (50, 1), (7, 33)]]
    alone = torch.cat([logits_of(model, ids, 64) for ids in lists])
    cache = model.new_cache(9)
    spans = [Span([3 * i, 3 * i + 1, 3 * i + 2], 0, len(ids)) for i, ids in enumerate(lists)]
    together = model.logits(model.hidden([token for ids in lists for token in ids], spans, cache))
    assert (together - alone).abs().max() < 1e-4


@pytest.fixture(scope="module")
def smollm(weights_file, tokenizer):
    """Ids of the text, the checkpoint, and the logits that fp32 weights give with fp32 keys and values."""
    ids = tokenizer.encode(TEXT)
    checkpoint = weights.open_checkpoint(weights_file)
    return ids, checkpoint, logits_of(Llama(*checkpoint, "fp32", "fp32"), ids, len(ids))


def perplexity(logits: torch.Tensor, ids: list[int]) -> float:
    return math.exp(cross_entropy(logits[:-1], torch.tensor(ids[1:])))


@pytest.mark.parametrize(
    ("precision", "kv", "loss", "agreement"),
    [
        ("fp16", "fp32", 0.01, 0.99),
        ("int8", "fp32", 0.01, 0.98),
        ("fp32", "int8", 0.005, 0.98),
        ("fp32", "k8v4", 0.01, 0.95),
    ],
)
def test_what_is_smaller_is_the_same_language_model(smollm, precision, kv, loss, agreement):
    ids, checkpoint, exact = smollm
    assert 10 < perplexity(exact, ids) < 45
    fast = logits_of(Llama(*checkpoint, precision, kv), ids, 200)
    assert perplexity(fast, ids) == pytest.approx(perplexity(exact, ids), rel=loss)
    assert (exact.argmax(-1) == fast.argmax(-1)).float().mean() >= agreement


def test_gguf_row_order_is_undone():
    heads, size, columns = 3, 8, 5
    weight = torch.randn(heads * size, columns)
    # As llama.cpp's convert_hf_to_gguf.py writes q and k.
    stored = weight.reshape(heads, 2, size // 2, columns).swapaxes(1, 2).reshape(weight.shape)
    assert not torch.equal(stored, weight)
    assert torch.equal(weights._unpermute(stored, heads), weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "RoPE scaling"),
        ({"attention_bias": True}, "biases"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, change, message):
    small_checkpoint(tmp_path, tied=True, shard="1GB")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        from_folder(tmp_path)


def test_a_checkpoint_that_lacks_a_tensor_names_it(tmp_path):
    small_checkpoint(tmp_path, tied=True, shard="1GB")
    _, read = weights.open_checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"model\.layers\.7\.mlp"):
        read("model.layers.7.mlp.up_proj.weight")
    (tmp_path / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00garbage!")
    with pytest.raises(InputError):
        read("model.norm.weight")
