"""Checkpoints as named fp32 tensors. Called by `load`; imports torch.

Names are those of Hugging Face's Llama (`model.layers.0.self_attn.q_proj.weight`), whatever the file calls them. A
tensor that is missing, of another shape, or in the file without a place in the model is an error, never passed over.
"""

import hashlib
import json
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize
from gguf.constants import GGML_QUANT_SIZES
from safetensors import SafetensorError, safe_open

from agents.engine import config
from agents.engine.config import ModelConfig
from agents.engine.gguf_file import GgufFile, read_gguf
from schemas.errors import InputError

Read = Callable[[str], torch.Tensor]
"""Gives one tensor by name, fp32. InputError when the checkpoint lacks it or its shape is not the model's."""

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_ROPE_FACTORS = "rope_freqs.weight"
_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def open_checkpoint(path: Path) -> tuple[ModelConfig, Read]:
    """The configuration of a .gguf file or safetensors folder, and a reader of its tensors."""
    if path.is_dir():
        shape = config.from_folder(path)
        return shape, _folder_reader(path, shape)
    file = read_gguf(path)
    shape = config.from_gguf(file.fields, file.tensors.keys())
    if _ROPE_FACTORS in file.tensors:
        factors = _gguf_values(file, _ROPE_FACTORS, (shape.head_size // 2,))
        shape = replace(shape, rope_factors=tuple(factors.tolist()))
    return shape, _gguf_reader(file, shape)


def digest(path: Path) -> str:
    """12 hex digits that name the weights: blake2b over the weight files, in order of name."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    whole = hashlib.blake2b(digest_size=6)
    for file in files:
        with file.open("rb") as stream:
            whole.update(hashlib.file_digest(stream, "blake2b").digest())
    return whole.hexdigest()


def tensor_shapes(shape: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model with its shape, rows first: projections are [outputs, inputs]."""
    hidden, q, kv = shape.hidden, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (shape.intermediate, hidden),
        "mlp.up_proj.weight": (shape.intermediate, hidden),
        "mlp.down_proj.weight": (hidden, shape.intermediate),
    }
    if shape.qkv_bias:
        layer |= {f"self_attn.{part}_proj.bias": (size,) for part, size in (("q", q), ("k", kv), ("v", kv))}
    if shape.qk_norm:
        layer |= {f"self_attn.{part}_norm.weight": (shape.head_size,) for part in "qk"}
    whole = {f"model.layers.{i}.{name}": size for i in range(shape.layers) for name, size in layer.items()}
    whole |= {"model.embed_tokens.weight": (shape.vocab_size, hidden), "model.norm.weight": (hidden,)}
    return whole if shape.tied else whole | {"lm_head.weight": (shape.vocab_size, hidden)}


def _check_shape(source: Path, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise InputError(f"{source}: tensor {name} has shape {list(found)}, the model needs {list(expected)}")


def _check_names(source: Path, names: Collection[str], known: Collection[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise InputError(f"{source}: {len(unknown)} tensors have no place in this model, the first is {unknown[0]}")


def _expected(source: Path, shapes: dict[str, tuple[int, ...]], name: str) -> tuple[int, ...]:
    if name not in shapes:
        raise InputError(f"{source}: {name} is no tensor of this model")
    return shapes[name]


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in _GGUF_NAMES:
        return f"{_GGUF_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"


def _gguf_reader(file: GgufFile, shape: ModelConfig) -> Read:
    shapes = tensor_shapes(shape)
    _check_names(file.path, file.tensors.keys(), {_gguf_name(name) for name in shapes} | {_ROPE_FACTORS})
    llama = file.fields["general.architecture"] == "llama"
    permuted = {"q_proj": shape.heads, "k_proj": shape.kv_heads} if llama else {}

    def read(name: str) -> torch.Tensor:
        expected = _expected(file.path, shapes, name)
        values = _gguf_values(file, _gguf_name(name), expected)
        part = name.split(".")[-2]
        return _unpermute(values, permuted[part]) if part in permuted else values

    return read


def _gguf_values(file: GgufFile, name: str, expected: tuple[int, ...]) -> torch.Tensor:
    info = file.tensors.get(name)
    if info is None:
        raise InputError(f"{file.path}: tensor {name} is missing")
    _check_shape(file.path, name, info.shape, expected)
    try:
        kind = GGMLQuantizationType(info.kind)
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise InputError(f"{file.path}: tensor {name} has the unknown ggml type {info.kind}") from error
    *rows, columns = info.shape
    row_bytes = columns // per_block * block_bytes
    size = math.prod(rows) * row_bytes
    if columns % per_block or info.offset + size > file.path.stat().st_size:
        raise InputError(f"{file.path}: tensor {name} breaks off")
    data = np.fromfile(file.path, dtype=np.uint8, count=size, offset=info.offset)
    try:
        values = dequantize(data.reshape(*rows, row_bytes), kind)
    except NotImplementedError as error:
        raise InputError(f"{file.path}: tensor {name} of ggml type {kind.name} cannot be read") from error
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF stores Llama's q and k rows for interleaved RoPE pairs; back to halves, as Hugging Face has them."""
    pairs = weight.view(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _folder_reader(folder: Path, shape: ModelConfig) -> Read:
    where, shapes = _files(folder), tensor_shapes(shape)
    # Tied models may still store the head; old checkpoints store what follows from the configuration.
    extra = {"lm_head.weight"} | {name for name in where if name.endswith("rotary_emb.inv_freq")}
    _check_names(folder, where, extra | shapes.keys())

    def read(name: str) -> torch.Tensor:
        expected = _expected(folder, shapes, name)
        if name not in where:
            raise InputError(f"{folder}: tensor {name} is missing")
        path = folder / where[name]
        try:
            with safe_open(path, framework="pt") as opened:
                tensor: torch.Tensor = opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: {error}") from error
        _check_shape(path, name, tuple(tensor.shape), expected)
        if tensor.dtype not in _FLOATS:
            raise InputError(f"{path}: tensor {name} is {tensor.dtype}, not of floating point")
        return tensor.to(torch.float32)

    return read


def _files(folder: Path) -> dict[str, str]:
    """The file of each tensor: from the index, or from the names in the only file."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _indexed(index)
    files = [folder / "model.safetensors"] if (folder / "model.safetensors").is_file() else []
    files = files or sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise InputError(f"{folder} holds {len(files)} .safetensors files and no {index.name}")
    try:
        with safe_open(files[0], framework="pt") as opened:
            return dict.fromkeys(opened.keys(), files[0].name)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{files[0]}: {error}") from error


def _indexed(index: Path) -> dict[str, str]:
    try:
        where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{index}: no index of tensors ({error!r})") from error
    if not isinstance(where, dict):
        raise InputError(f"{index}: weight_map is no object")
    for name, file in where.items():
        # An index from elsewhere must not make the loader open files outside the checkpoint.
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise InputError(f"{index}: tensor {name} lies in {file!r}, not in a .safetensors file of this folder")
    return where
