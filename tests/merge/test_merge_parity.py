"""The same recipes, in mergekit's own YAML, through mergekit 0.1.5 (`make oracle`) and through us.

Compared in bfloat16 after float32 arithmetic on both sides. A ulp is one step of bfloat16.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from pipelines.merge.recipe_file import load_recipe
from pipelines.merge.run import merge

ORACLE = Path(os.environ.get("TRAJMILL_ORACLE", ".oracle")) / "bin" / "python"
pytestmark = pytest.mark.skipif(not ORACLE.exists(), reason=f"no mergekit at {ORACLE}; `make oracle` installs it")

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints, recipes, and what mergekit makes of them."""
    root = tmp_path_factory.mktemp("parity")
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
    python = ORACLE.absolute()  # not resolved: a link is what makes it a virtual environment
    done = subprocess.run([python, driver, *arguments], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return root


def pairs(folder: Path, name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """bfloat16 bits as integers whose differences are ulps, by tensor."""
    out = merge(load_recipe(folder / f"{name}.yaml"), folder / f"ours-{name}")
    ours, theirs = load_file(out / "model.safetensors"), load_file(folder / f"theirs-{name}" / "model.safetensors")
    assert ours.keys() == theirs.keys() and all(t.dtype == torch.bfloat16 for t in ours.values())

    def ordered(tensor: torch.Tensor) -> np.ndarray:
        bits = tensor.view(torch.int16).numpy().astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFF), bits)

    return {n: (ordered(ours[n]), ordered(theirs[n])) for n in ours}


@pytest.mark.parametrize("name", list(RECIPES))
def test_deterministic_methods_agree(folder: Path, name: str) -> None:
    distances = np.concatenate([np.abs(a - b).ravel() for a, b in pairs(folder, name).values()])
    within = (distances <= 1).mean()
    print(f"{name}: equal {(distances == 0).mean():.6f}, within 1 ulp {within:.6f}")
    if name.startswith(("linear", "passthrough")):
        assert (distances > 1).sum() == 0 and (distances > 0).mean() <= 0.002
    assert within >= 0.999


@pytest.mark.parametrize("name", list(RANDOM))
def test_random_methods_agree_in_distribution(folder: Path, name: str) -> None:
    base = load_file(folder / "base" / "model.safetensors")
    out = merge(load_recipe(folder / f"{name}.yaml"), folder / f"ours-{name}")
    kept = []
    for made in (load_file(f / "model.safetensors") for f in (out, folder / f"theirs-{name}")):
        changes = [(made[n].float() - base[n].bfloat16().float()).flatten() for n in base if base[n].ndim == 2]
        changed = torch.cat(changes)
        kept.append(((changed != 0).float().mean().item(), changed.abs().mean().item(), changed.mean().item()))
    assert kept[0][0] == pytest.approx(kept[1][0], abs=0.01)
    assert kept[0][1] == pytest.approx(kept[1][1], rel=0.03)
    assert kept[0][2] == pytest.approx(kept[1][2], abs=2e-4)
