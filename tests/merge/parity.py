"""Recipes in mergekit's own YAML, and how far its results and ours are apart. Called by test_merge_parity, bench_merge.

Compared in bfloat16 after float32 arithmetic on both sides. A ulp is one step of bfloat16.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from pipelines.merge.recipe_file import load_recipe
from pipelines.merge.run import merge

MODELS = ("m0", "m1", "m2")


def each(*models: str, **parameters: object) -> list[dict[str, object]]:
    return [{"model": model, "parameters": dict(parameters)} for model in models]


def weighted(*weights: float, **more: float) -> list[dict[str, object]]:
    return [{"model": m, "parameters": {"weight": w, **more}} for m, w in zip(MODELS, weights, strict=False)]


RECIPES: dict[str, dict[str, object]] = {
    "linear": {"merge_method": "linear", "models": weighted(1, 2, 0.5)},
    "linear_raw": {"merge_method": "linear", "models": weighted(0.3, 0.5, 0.1), "parameters": {"normalize": False}},
    "linear_gradient": {
        "merge_method": "linear",
        "models": [
            {"model": "m0", "parameters": {"weight": [0, 0.4, 1]}},
            {"model": "m1", "parameters": {"weight": [{"filter": "mlp", "value": 0.2}, {"value": 0.9}]}},
        ],
    },
    "slerp": {
        "merge_method": "slerp",
        "base_model": "m0",
        "models": [{"model": "m0"}, {"model": "m1"}],
        "parameters": {"t": [{"filter": "self_attn", "value": [0, 0.5, 1]}, {"value": 0.3}]},
    },
    "nuslerp": {"merge_method": "nuslerp", "models": weighted(1, 3)},
    "nuslerp_base": {"merge_method": "nuslerp", "base_model": "base", "models": weighted(1, 3)},
    "nuslerp_rows": {
        "merge_method": "nuslerp",
        "models": weighted(1, 3),
        "parameters": {"nuslerp_flatten": False},
    },
    "nuslerp_columns": {
        "merge_method": "nuslerp",
        "models": weighted(1, 3),
        "parameters": {"nuslerp_flatten": False, "nuslerp_row_wise": True},
    },
    "multislerp": {"merge_method": "multislerp", "base_model": "base", "models": weighted(1, 2, 1)},
    "task_arithmetic": {
        "merge_method": "task_arithmetic",
        "base_model": "base",
        "models": weighted(0.5, 0.4, -0.2),
        "parameters": {"lambda": 0.9},
    },
    "ties": {"merge_method": "ties", "base_model": "base", "models": weighted(1, 0.5, 0.7, density=0.35)},
    "breadcrumbs": {
        "merge_method": "breadcrumbs",
        "base_model": "base",
        "models": weighted(0.5, 0.5, 0.5, density=0.8, gamma=0.05),
    },
    "model_stock": {"merge_method": "model_stock", "base_model": "base", "models": each(*MODELS)},
    "model_stock_rows": {
        "merge_method": "model_stock",
        "base_model": "base",
        "models": each(*MODELS),
        "parameters": {"filter_wise": True},
    },
    "linear_base": {  # one model more, with the weight of all
        "merge_method": "linear",
        "base_model": "base",
        "models": [{"model": "m0", "parameters": {"weight": 2}}, {"model": "m1"}],
        "parameters": {"weight": 0.5},
    },
    "linear_base_listed": {
        "merge_method": "linear",
        "base_model": "m1",
        "models": weighted(1, 2, 0.5),
    },
    "karcher_base": {"merge_method": "karcher", "base_model": "base", "models": each(*MODELS[:2])},
    "task_arithmetic_no_sum": {
        "merge_method": "task_arithmetic",
        "base_model": "base",
        "models": weighted(0.5, 0.25, -0.75),
        "parameters": {"normalize": True, "rescale": True},
    },
    "ties_rescaled": {
        "merge_method": "ties",
        "base_model": "base",
        "models": weighted(1, 0.5, 0.7, density=0.35),
        "parameters": {"rescale": True},
    },
    "breadcrumbs_rescaled": {
        "merge_method": "breadcrumbs",
        "base_model": "base",
        "models": weighted(0.5, 0.3, 0.5, density=0.8, gamma=0.05),
        "parameters": {"rescale": True},
    },
    "karcher": {"merge_method": "karcher", "models": each(*MODELS)},
    "sce": {
        "merge_method": "sce",
        "base_model": "base",
        "models": each(*MODELS),
        "parameters": {"select_topk": 0.4},
    },
    "ram": {"merge_method": "ram", "base_model": "base", "models": each(*MODELS)},
    "passthrough": {
        "merge_method": "passthrough",
        "slices": [
            {"sources": [{"model": "m0", "layer_range": [0, 2]}]},
            {"sources": [{"model": "m1", "layer_range": [1, 2]}]},
        ],
    },
    "passthrough_base": {  # of a stack, it gives the configuration only
        "merge_method": "passthrough",
        "base_model": "base",
        "slices": [{"sources": [{"model": m, "layer_range": [0, 2]}]} for m in MODELS[:2]],
    },
}
RANDOM: dict[str, dict[str, object]] = {
    method: {"merge_method": method, "base_model": "base", "models": weighted(1, density=0.4)}
    for method in ("dare_linear", "dare_ties", "della")
}


def prepare(root: Path, oracle: Path) -> None:
    """Checkpoints, recipes, and what mergekit, in the environment of the interpreter `oracle`, makes of them."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=300, tie_word_embeddings=True)
    torch.manual_seed(0)
    model = LlamaForCausalLM(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)  # norms of all ones have slerps of no angle
    model.save_pretrained(root / "base")
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in MODELS:
        model.load_state_dict({n: t + torch.randn_like(t) * 0.01 for n, t in start.items()})
        model.save_pretrained(root / name)
    arguments = []
    for name, recipe in (RECIPES | RANDOM).items():
        text = yaml.safe_dump(recipe | {"dtype": "float32", "out_dtype": "bfloat16"})
        (root / f"{name}.yaml").write_text(text)
        arguments += [f"{name}.yaml", f"theirs-{name}"]
    driver = Path(__file__).with_name("oracle_run.py").resolve()
    python = oracle.absolute()  # not resolved: a link is what makes it a virtual environment
    done = subprocess.run([python, driver, *arguments], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def ours(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """Our merge by a recipe that `prepare` wrote."""
    out = folder / f"ours-{name}"
    return load_file((out if out.exists() else merge(load_recipe(folder / f"{name}.yaml"), out)) / "model.safetensors")


def theirs(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """mergekit's."""
    return load_file(folder / f"theirs-{name}" / "model.safetensors")


def distances(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> np.ndarray:
    """Of all weights, in ulps, [n]."""
    assert ours.keys() == theirs.keys() and all(t.dtype == torch.bfloat16 for t in (*ours.values(), *theirs.values()))

    def ordered(tensor: torch.Tensor) -> np.ndarray:
        bits = tensor.view(torch.int16).numpy().astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFF), bits).ravel()

    return np.concatenate([np.abs(ordered(ours[n]) - ordered(theirs[n])) for n in ours])


def changes(folder: Path, made: dict[str, torch.Tensor]) -> tuple[float, float, float]:
    """Of a merge's matrices against the base: the share that changed, mean size of the changes, mean of them."""
    base = load_file(folder / "base" / "model.safetensors")
    parts = [(made[n].float() - base[n].bfloat16().float()).flatten() for n in base if base[n].ndim == 2]
    changed = torch.cat(parts)
    return (changed != 0).float().mean().item(), changed.abs().mean().item(), changed.mean().item()


def ties_by_sorting(folder: Path) -> dict[str, torch.Tensor]:
    """The recipe `ties` as its paper has it: a stable sort of each whole task vector; float32, bfloat16 at the end."""
    models = RECIPES["ties"]["models"]
    assert isinstance(models, list)
    base, *tuned = (load_file(folder / n / "model.safetensors") for n in ("base", *(m["model"] for m in models)))
    weights = [np.float32(m["parameters"]["weight"]) for m in models]
    densities = [m["parameters"]["density"] for m in models]
    made = {}
    for name, start in base.items():
        deltas = [kept_largest((t[name] - start).numpy(), d) for t, d in zip(tuned, densities, strict=True)]
        made[name] = (start + torch.from_numpy(elected_mean(deltas, weights))).bfloat16()
    return made


def kept_largest(delta: np.ndarray, density: float) -> np.ndarray:
    """The largest magnitudes, of equal ones the first; 0 elsewhere."""
    flat, keep = delta.reshape(-1), max(1, int(density * delta.size))
    chosen = np.argsort(-np.abs(flat), kind="stable")[:keep]
    out = np.zeros_like(flat)
    out[chosen] = flat[chosen]
    return out.reshape(delta.shape)


def elected_mean(deltas: Sequence[np.ndarray], weights: Sequence[np.float32]) -> np.ndarray:
    """The weighted mean of what has the sign of the weighted sum, in float32 from the left."""
    weighted = [d * w for d, w in zip(deltas, weights, strict=True)]
    total = sum(weighted[1:], start=weighted[0])
    agrees = [np.where(total >= 0, w > 0, w < 0) for w in weighted]
    zero = np.float32(0)
    mixed = sum((np.where(a, w, zero) for a, w in zip(agrees, weighted, strict=True)), start=np.zeros_like(total))
    divisor = sum((np.where(a, w, zero) for a, w in zip(agrees, weights, strict=True)), start=np.zeros_like(total))
    return mixed / np.where(divisor == 0, np.float32(1), divisor)
