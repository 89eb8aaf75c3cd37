"""The decoder against `transformers` (an oracle here, never imported by the product), and the weights' quality."""

import json
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from agents.engine import weights
from agents.engine.attention import Span
from agents.engine.config import from_folder
from agents.engine.models.llama import Llama
from schemas.errors import ConfigError, InputError

TEXT = """A small workshop on the edge of the town repairs clocks. Every morning the owner opens the shutters, sweeps the
floor and winds the tall clock by the door. People bring her watches that stopped years ago, and most of them leave
with a watch that works. She keeps a notebook in which she writes the date, the name of the customer, what was broken
and how long the repair took. After ten years she had filled fourteen notebooks. One winter she counted the entries and
found that almost half of all repairs were the same: a spring that had lost its strength. Since then she keeps a box of
springs on the shelf behind her, sorted by size, and a repair that used to take a day is done in an hour. Her nephew
wrote a short program that reads the table of repairs and prints the average time for each kind of fault. The first
version of the program was wrong, because it counted the days on which the shop was closed.""".replace("\n", " ")


def logits_of(model: Llama, ids: list[int], chunk: int) -> torch.Tensor:
    kv = model.new_kv(len(ids))
    rows = []
    for start in range(0, len(ids), chunk):
        part = torch.tensor(ids[start : start + chunk])
        span = Span(kv, 0, start, len(part))
        rows.append(model.logits(model.hidden(part, torch.arange(start, start + len(part)), [span])))
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
    model = Llama(shape, read, "fp32", kv_dtype=torch.float32)
    ids = torch.randint(0, 160, (70,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = oracle(torch.tensor([ids])).logits[0].detach()
    for chunk in (70, 16, 1):
        assert (logits_of(model, ids, chunk) - expected).abs().max() < 2e-4 * expected.abs().max()


def test_batched_rows_of_several_sequences_equal_single_ones(tmp_path):
    small_checkpoint(tmp_path, tied=True, shard="1GB")
    model = Llama(*weights.open_checkpoint(tmp_path), "fp32", kv_dtype=torch.float32)
    lists = [list(range(i, i + n)) for i, n in [(3, 20), (50, 1), (7, 33)]]
    alone = torch.cat([logits_of(model, ids, 64) for ids in lists])
    spans, row = [], 0
    for ids in lists:
        spans.append(Span(model.new_kv(40), row, 0, len(ids)))
        row += len(ids)
    positions = torch.cat([torch.arange(len(ids)) for ids in lists])
    together = model.logits(model.hidden(torch.tensor(sum(lists, [])), positions, spans))
    assert (together - alone).abs().max() < 1e-4


@pytest.fixture(scope="module")
def smollm_logits(weights_file, tokenizer):
    ids = tokenizer.encode(TEXT)
    shape, read = weights.open_checkpoint(weights_file)
    exact = Llama(shape, read, "fp32", kv_dtype=torch.float32)
    return ids, logits_of(exact, ids, len(ids)), logits_of(Llama(shape, read, "fp16"), ids, 100)


def perplexity(logits: torch.Tensor, ids: list[int]) -> float:
    return math.exp(cross_entropy(logits[:-1], torch.tensor(ids[1:])))


def test_perplexity_is_that_of_a_language_model(smollm_logits):
    ids, exact, fast = smollm_logits
    assert 5 < perplexity(exact, ids) < 25
    assert perplexity(fast, ids) == pytest.approx(perplexity(exact, ids), rel=0.01)


def test_fast_weights_choose_the_same_tokens(smollm_logits):
    _, exact, fast = smollm_logits
    assert (exact.argmax(-1) == fast.argmax(-1)).float().mean() >= 0.99


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
    shape, read = weights.open_checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"model\.layers\.7\.mlp"):
        read("model.layers.7.mlp.up_proj.weight")
    (tmp_path / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00garbage!")
    with pytest.raises(InputError):
        read("model.norm.weight")
