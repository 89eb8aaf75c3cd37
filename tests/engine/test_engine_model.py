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
from agents.engine.sequence import BLOCK
from schemas.errors import ConfigError, InputError

TEXT = """A small workshop on the edge of the town repairs clocks. Every morning the owner opens the shutters, sweeps
the floor and winds the tall clock by the door. People bring her watches that stopped years ago, and most of
them leave with a watch that works. She keeps a notebook in which she writes the date, the name of the
customer, what was broken and how long the repair took. After ten years she had filled fourteen notebooks.
One winter she counted the entries and found that almost half of all repairs were the same: a spring that
had lost its strength. Since then she keeps a box of springs on the shelf behind her, sorted by size, and a
repair that used to take a day is done in an hour. Her nephew wrote a short program that reads the table of
repairs and prints the average time for each kind of fault. The first version of the program was wrong,
because it counted the days on which the shop was closed. To repair the program, she first wrote down what
it should print for three weeks that she knew well. Then she ran it on the same weeks and compared the
numbers by hand. Two of them agreed and the third was off by one day. The fault was in the line that
subtracts one date from another: it took the day after the watch was collected instead of the day itself.
Once the line was changed all three numbers agreed, and she kept the three weeks in a file so that the next
change could be checked in the same way. The table itself has seven columns: number, date, customer, object,
fault, hours and price. A row is never deleted. If a customer changes her mind, a second row is added with
the same number and a price of zero, and a remark says why. At the end of each month the rows are sorted by
fault and the hours are added up. The sum goes to a sheet of paper on the wall, where everybody who works in
the shop can see it. In March there were forty repairs, in April thirty six, and in May, when the school is
closed for two weeks, only twenty one. The owner thinks that people break fewer watches when they are on
holiday, but her nephew says that they simply do not notice. If the water in the street rises, the shop has
to be closed. It happened twice in the last twenty years. The first time the clocks on the lower shelves
were lost, because nobody had thought of carrying them upstairs. The second time everyone knew what to do:
one person took the watches, another one the tools, and the third one the notebooks. It took them less than
ten minutes, and when the water was gone they only had to clean the floor and wait until the wood was dry.
Since that day a small card hangs next to the door. It says who carries what, in which order, and where the
key to the upper room is kept.""".replace("\n", " ")


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
