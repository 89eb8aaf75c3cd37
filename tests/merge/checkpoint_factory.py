"""Checkpoint folders made on the spot, single-file or sharded, for the merge tests."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

CONFIG = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "torch_dtype": "bfloat16"}
SHAPES = {"model.embed.weight": (37, 8), "model.norm.weight": (8,), "model.layer.weight": (300, 1001), "scale": ()}

Tensors = dict[str, torch.Tensor]


def tensors(
    seed: int, dtype: torch.dtype = torch.bfloat16, shapes: dict[str, tuple[int, ...]] | None = None
) -> Tensors:
    """Random normal tensors."""
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=generator).to(dtype) for n, s in (shapes or SHAPES).items()}


def save(folder: Path, made: Tensors, *, shards: int = 1, config: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint folder as transformers does."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": []}))
    (folder / "optimizer.pt").write_bytes(b"not copied")
    if shards == 1:
        save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = sorted(made)
    weight_map = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({n: made[n] for n in names if weight_map[n] == file}, folder / file, metadata={"format": "pt"})
    total = sum(t.numel() * t.element_size() for t in made.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
