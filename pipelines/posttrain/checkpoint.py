"""Checkpoint folders that training starts from, stops at and ends in. Called by `sft`, the loop and the command."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from agents.engine import files
from agents.engine.config import ModelConfig
from agents.engine.tokenizer import ChatTokenizer, load_tokenizer
from agents.engine.weights import open_checkpoint, tensor_shapes
from pipelines.files import atomic_file, fsync_folder, sha256_of, write_text
from schemas.errors import ConfigError, InputError

Tensors = Mapping[str, torch.Tensor]
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_COPIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json",
)  # fmt: skip
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def export_base(model: str, out: Path) -> Path:
    """Write `smollm2` or a .gguf file as a float32 safetensors folder that the engine and transformers load.

    Does nothing where `out` is there: it is written whole or not at all. ConfigError for what has no such form.
    """
    path = files.find(model)
    if path.is_dir():
        raise ConfigError(f"{path} is a checkpoint folder already")
    if out.exists():
        return out
    shape, read = open_checkpoint(path)
    if shape.window is not None or shape.rope_factors is not None:
        raise ConfigError(f"{path}: sliding windows and RoPE factors cannot be exported")
    tokenizer = load_tokenizer(model)
    work = fresh(out.with_name(f".{out.name}.export"))
    save_tensors({name: read(name) for name in tensor_shapes(shape)}, work / "model.safetensors", {"format": "pt"})
    _write_json(work / "config.json", _hugging_face(shape, tokenizer))
    _write_json(work / "tokenizer.json", tokenizer._definition)
    names = {f"{kind}_token": "<|im_end|>" for kind in ("eos", "pad")} | {"bos_token": "<|im_start|>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": shape.context}
    _write_json(work / "tokenizer_config.json", names | settings | {"clean_up_tokenization_spaces": False})
    write_text(work / "chat_template.jinja", _CHATML)
    _write_json(work / "lineage.json", {"exported_from": path.name, "sha256": sha256_of(path)})
    return publish(work, out)


def starting_point(model: str, out: Path) -> Path:
    """The folder that training into `out` starts from: `model` itself, or what `export_base` writes beside `out`."""
    path = files.find(model)
    return path if path.is_dir() else export_base(model, out.with_name(f"{out.name}-base"))


def finish(base: Path, weights: Tensors, dtype: str, lineage: dict[str, Any], losses: str, work: Path) -> None:
    """Fill `work` with a checkpoint like `base`, with other weights in `dtype`."""
    save_tensors({n: t.to(DTYPES[dtype]) for n, t in weights.items()}, work / "model.safetensors", {"format": "pt"})
    raw = json.loads((base / "config.json").read_text(encoding="utf-8"))
    raw.pop("torch_dtype", None)
    _write_json(work / "config.json", raw | {"dtype": dtype})
    for name in _COPIED:
        if (base / name).is_file():
            with atomic_file(work / name) as temporary:
                shutil.copyfile(base / name, temporary)
    write_text(work / "losses.jsonl", losses)
    _write_json(work / "lineage.json", lineage)


def publish(work: Path, out: Path) -> Path:
    """Give a finished folder its name."""
    fsync_folder(work)
    work.rename(out)
    fsync_folder(out.parent)
    return out


def weight_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every weight file of a checkpoint, by name. InputError when there is none."""
    found = {file.name: sha256_of(file) for file in sorted(folder.glob("*.safetensors"))}
    if not found:
        raise InputError(f"{folder} holds no .safetensors file: not a checkpoint folder")
    return found


def save_tensors(tensors: Tensors, path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all."""
    with atomic_file(path) as temporary:
        save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, temporary, metadata=metadata)


def load_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file. InputError names it when it cannot be read."""
    try:
        with safe_open(path, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: {error}") from error


def read_lineage(folder: Path) -> dict[str, Any] | None:
    """The `lineage.json` of a checkpoint, None where it has none. InputError when it is no JSON object."""
    path = folder / "lineage.json"
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: no JSON object")
    return found


def fresh(folder: Path) -> Path:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def _write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _hugging_face(shape: ModelConfig, tokenizer: ChatTokenizer) -> dict[str, Any]:
    kind = "qwen3" if shape.qk_norm else "qwen2" if shape.qkv_bias else "llama"
    return {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.eos_id,
        "dtype": "float32",
    }
