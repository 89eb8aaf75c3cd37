"""Small random checkpoints of every family against `transformers`, from safetensors and GGUF; and what is refused."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from agents.engine import weights
from agents.engine.attention import Span
from agents.engine.config import inverse_frequencies
from agents.engine.models.llama import Llama
from agents.engine.sequence import BLOCK
from schemas.errors import InputError

SIZES = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MIXED = {
    "use_sliding_window": True,
    "sliding_window": 8,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
}
FAMILIES = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "mistral": ("mistral", {"sliding_window": 8, "head_dim": 32}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-mixed": ("qwen2", MIXED),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-mixed": ("qwen3", MIXED | {"head_dim": 32, "tie_word_embeddings": True}),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads only wait for each other on models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def checkpoint(folder: Path, family: str, shard: str = "1GB"):
    """A random model of the family, saved as transformers saves it."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    kind, change = FAMILIES[family]
    torch.manual_seed(5)
    oracle = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**SIZES, **change)).eval()
    with torch.no_grad():
        # Biases start as zeros and norms as ones, which would hide whether they are used.
        for name, parameter in oracle.named_parameters():
            if name.endswith((".bias", "norm.weight")):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    oracle.save_pretrained(folder, max_shard_size=shard)
    return oracle


def logits_of(model: Llama, ids: list[int], chunk: int) -> torch.Tensor:
    table = list(range(-(-len(ids) // BLOCK)))
    cache = model.new_cache(len(table), len(table))
    rows = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        span = Span(table, start, len(part), window=table)
        rows.append(model.logits(model.hidden(part, [span], cache)))
    return torch.cat(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(tmp_path, family):
    oracle = checkpoint(tmp_path, family)
    model = Llama(*weights.open_checkpoint(tmp_path), "fp32", "fp32")
    ids = torch.randint(0, 160, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = oracle(torch.tensor([ids])).logits[0].detach()
    for chunk in (100, 11, 1):
        assert (logits_of(model, ids, chunk) - expected).abs().max() < 2e-4 * expected.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_names_shapes_and_values_are_those_of_transformers(tmp_path, family):
    oracle = checkpoint(tmp_path, family, shard="60KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    shape, read = weights.open_checkpoint(tmp_path)
    theirs = oracle.state_dict()
    if shape.tied:
        del theirs["lm_head.weight"]
    assert weights.tensor_shapes(shape) == {name: tuple(value.shape) for name, value in theirs.items()}
    for name, value in theirs.items():
        assert torch.equal(read(name), value)


def write_gguf(path: Path, folder: Path, kind: str, state: dict[str, torch.Tensor], *, quantised: bool) -> None:
    """As llama.cpp's convert_hf_to_gguf.py writes it; matrices as Q8_0 where `quantised`."""
    raw = json.loads((folder / "config.json").read_text())
    heads, kv_heads = raw["num_attention_heads"], raw["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(raw["num_hidden_layers"])
    writer.add_embedding_length(raw["hidden_size"])
    writer.add_feed_forward_length(raw["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    writer.add_context_length(raw["max_position_embeddings"])
    writer.add_rope_freq_base(raw["rope_parameters"]["rope_theta"])
    writer.add_token_list([f"t{i}" for i in range(raw["vocab_size"])])
    if raw.get("head_dim"):
        writer.add_key_length(raw["head_dim"])
        writer.add_value_length(raw["head_dim"])
    if raw.get("use_sliding_window"):
        writer.add_sliding_window(raw["sliding_window"])
        writer.add_sliding_window_pattern([one == "sliding_attention" for one in raw["layer_types"]])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], raw["num_hidden_layers"])
    for name, tensor in state.items():
        value = tensor.numpy()
        if kind == "llama" and "self_attn.q" in name:
            value = permuted(value, heads)
        if kind == "llama" and "self_attn.k" in name:
            value = permuted(value, kv_heads)
        q8 = gguf.GGMLQuantizationType.Q8_0 if quantised and value.ndim == 2 else None
        data = value if q8 is None else gguf.quantize(value, q8)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), data, raw_dtype=q8)
    if raw["rope_parameters"]["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(raw))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def permuted(value: np.ndarray, heads: int) -> np.ndarray:
    halves = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(value.shape))


def llama3_divisors(raw) -> np.ndarray:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaled = LlamaRotaryEmbedding(LlamaConfig(**raw)).inv_freq
    plain = LlamaRotaryEmbedding(
        LlamaConfig(**raw | {"rope_parameters": {"rope_theta": LLAMA3["rope_theta"]}})
    ).inv_freq
    return (plain / scaled).numpy()


@pytest.mark.parametrize("family", ["llama", "llama3", "qwen2", "qwen2-mixed", "qwen3", "qwen3-mixed"])
@pytest.mark.parametrize("quantised", [False, True])
def test_a_gguf_file_gives_the_same_model_as_its_folder(tmp_path, family, quantised):
    oracle = checkpoint(tmp_path, family)
    shape, read = weights.open_checkpoint(tmp_path)
    state = {name: read(name) for name in weights.tensor_shapes(shape)}
    kind = FAMILIES[family][0]
    write_gguf(tmp_path / "model.gguf", tmp_path, kind, state, quantised=quantised)
    found, read_gguf = weights.open_checkpoint(tmp_path / "model.gguf")
    assert inverse_frequencies(found) == pytest.approx(inverse_frequencies(shape), rel=1e-6)
    assert weights.tensor_shapes(found) == weights.tensor_shapes(shape)
    assert (found.windows, found.tied, found.context) == (shape.windows, shape.tied, shape.context)
    assert found.norm_eps == pytest.approx(oracle.config.rms_norm_eps)
    for name, value in state.items():
        # Q8_0: 32 values share a scale of a 127th of the largest.
        close = {"rtol": 0, "atol": float(value.abs().max()) / 127} if quantised and value.ndim == 2 else {}
        torch.testing.assert_close(read_gguf(name), value, **close or {"rtol": 0, "atol": 0})


def test_biases_of_a_llama_gguf_are_reordered_with_their_rows(tmp_path):
    checkpoint(tmp_path, "llama")
    shape, read = weights.open_checkpoint(tmp_path)
    state = {name: read(name) for name in weights.tensor_shapes(shape)}
    for i in range(shape.layers):
        for part in "qkv":
            rows = len(state[f"model.layers.{i}.self_attn.{part}_proj.weight"])
            state[f"model.layers.{i}.self_attn.{part}_proj.bias"] = torch.randn(rows)
    write_gguf(tmp_path / "model.gguf", tmp_path, "llama", state, quantised=False)
    found, read_gguf = weights.open_checkpoint(tmp_path / "model.gguf")
    assert found.qkv_bias
    assert all(torch.equal(read_gguf(name), value) for name, value in state.items())


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "config.json", 7])
def test_an_index_cannot_point_elsewhere(tmp_path, file):
    folder = tmp_path / "checkpoint"
    checkpoint(folder, "llama")
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": file}}))
    with pytest.raises(InputError, match=r"model\.norm\.weight lies in"):
        weights.open_checkpoint(folder)


@pytest.mark.parametrize("text", ["", "{}", '{"weight_map": [1]}', "[]"])
def test_a_broken_index_is_an_input_error(tmp_path, text):
    checkpoint(tmp_path, "llama")
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InputError, match=r"index\.json"):
        weights.open_checkpoint(tmp_path)


def test_a_folder_is_checked_against_its_configuration(tmp_path):
    from safetensors.torch import load_file, save_file

    checkpoint(tmp_path, "qwen2")
    path, tensors = tmp_path / "model.safetensors", load_file(tmp_path / "model.safetensors")
    _, read = weights.open_checkpoint(tmp_path)
    for name in ("model.layers.7.mlp.up_proj.weight", "model.layers.0.self_attn.q_norm.weight", "lm_head.weight"):
        with pytest.raises(InputError, match=f"{name} is no tensor of this model"):
            read(name)

    save_file(
        tensors | {"model.norm.weight": torch.zeros(32), "model.embed_tokens.weight": torch.zeros(160, 64).int()}, path
    )
    with pytest.raises(InputError, match=r"model\.norm\.weight has shape \[32\], the model needs \[64\]"):
        read("model.norm.weight")
    with pytest.raises(InputError, match=r"embed_tokens\.weight is torch\.int32"):
        read("model.embed_tokens.weight")

    save_file({name: value for name, value in tensors.items() if "layers.1" not in name}, path)
    _, read = weights.open_checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.up_proj\.weight is missing"):
        read("model.layers.1.mlp.up_proj.weight")

    save_file(tensors | {"model.layers.0.self_attn.o_proj.bias": torch.zeros(64)}, path)
    with pytest.raises(InputError, match=r"no place in this model, the first is .*o_proj\.bias"):
        weights.open_checkpoint(tmp_path)

    save_file(tensors, tmp_path / "other.safetensors")
    path.rename(tmp_path / "one.safetensors")
    with pytest.raises(InputError, match=r"holds 2 \.safetensors files"):
        weights.open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.norm.weight", torch.zeros(32), r"output_norm\.weight has shape \[32\], the model needs \[64\]"),
        ("model.norm.weight", None, r"output_norm\.weight is missing"),
        ("model.layers.0.self_attn.o_proj.bias", torch.zeros(64), r"no place .* is blk\.0\.attn_output\.bias"),
        ("model.layers.9.x", None, r"model\.layers\.9\.x is no tensor of this model"),
    ],
)
def test_a_gguf_file_is_checked_against_its_header(tmp_path, name, value, message):
    checkpoint(tmp_path, "qwen3")
    shape, read = weights.open_checkpoint(tmp_path)
    state = {known: read(known) for known in weights.tensor_shapes(shape) if known != name}
    state |= {} if value is None else {name: value}
    write_gguf(tmp_path / "model.gguf", tmp_path, "qwen3", state, quantised=False)
    with pytest.raises(InputError, match=message):
        weights.open_checkpoint(tmp_path / "model.gguf")[1](name)


def test_a_gguf_file_that_breaks_off_or_has_an_unknown_type(tmp_path):
    checkpoint(tmp_path, "qwen3")
    path, (shape, read) = tmp_path / "model.gguf", weights.open_checkpoint(tmp_path)
    state = {name: read(name) for name in weights.tensor_shapes(shape)}
    write_gguf(path, tmp_path, "qwen3", state, quantised=False)
    _, read = weights.open_checkpoint(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-4096])
    last = next(reversed(state))
    with pytest.raises(InputError, match="breaks off"):
        read(last)
    # The type number stands behind the name, the number of dimensions and the dimensions.
    at = whole.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    for number, message in ((99, "unknown ggml type 99"), (int(gguf.GGMLQuantizationType.I8), "ggml type I8 cannot")):
        path = path.with_stem(f"type{number}")
        path.write_bytes(whole[:at] + number.to_bytes(4, "little") + whole[at + 4 :])
        with pytest.raises(InputError, match=message):
            weights.open_checkpoint(path)[1]("model.norm.weight")
