"""Checkpoints as named fp32 tensors. Called by `load`; imports torch.

Names are those of Hugging Face's Llama (`model.layers.0.self_attn.q_proj.weight`), whatever the file calls them.
"""

import hashlib
import json
from collections.abc import Callable
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
"""Gives one tensor by name, fp32. InputError when the checkpoint lacks it."""

_GGUF_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_GGUF_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def open_checkpoint(path: Path) -> tuple[ModelConfig, Read]:
    """The configuration of a .gguf file or safetensors folder, and a reader of its tensors."""
    if path.is_dir():
        shape = config.from_folder(path)
        return shape, _folder_reader(path)
    file = read_gguf(path)
    shape = config.from_gguf(file.fields, tied="output.weight" not in file.tensors)
    return shape, _gguf_reader(file, shape)


def digest(path: Path) -> str:
    """12 hex digits that name the weights: blake2b over the weight files, in order of name."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    whole = hashlib.blake2b(digest_size=6)
    for file in files:
        with file.open("rb") as stream:
            whole.update(hashlib.file_digest(stream, "blake2b").digest())
    return whole.hexdigest()


def _gguf_name(name: str) -> str:
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_GGUF_LAYER[rest]}"


def _gguf_reader(file: GgufFile, shape: ModelConfig) -> Read:
    def read(name: str) -> torch.Tensor:
        info = file.tensors.get(_gguf_name(name))
        if info is None:
            raise InputError(f"{file.path}: tensor {_gguf_name(name)} is missing")
        kind = GGMLQuantizationType(info.kind)
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
        size = int(np.prod(info.shape)) // per_block * block_bytes
        data = np.fromfile(file.path, dtype=np.uint8, count=size, offset=info.offset)
        if data.size != size:
            raise InputError(f"{file.path}: tensor {info.name} breaks off")
        rows = data.reshape(*info.shape[:-1], -1)
        values = torch.from_numpy(np.ascontiguousarray(dequantize(rows, kind), dtype=np.float32))
        if name.endswith("q_proj.weight"):
            return _unpermute(values, shape.heads)
        if name.endswith("k_proj.weight"):
            return _unpermute(values, shape.kv_heads)
        return values

    return read


def _unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF stores Llama's q and k rows for interleaved RoPE pairs; back to halves, as Hugging Face has them."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _folder_reader(folder: Path) -> Read:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        where: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    else:
        where = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as opened:
                where |= dict.fromkeys(opened.keys(), file.name)
    if not where:
        raise InputError(f"{folder} holds no .safetensors file")

    def read(name: str) -> torch.Tensor:
        if name not in where:
            raise InputError(f"{folder}: tensor {name} is missing")
        try:
            with safe_open(folder / where[name], framework="pt") as opened:
                tensor: torch.Tensor = opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{folder / where[name]}: {error}") from error
        return tensor.to(torch.float32)

    return read
