"""Recipes: mergekit's YAML and ours, parameters by layer and name, vocabularies, and the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_factory import save, tensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.merge.parameters import method_options, model_parameters
from pipelines.merge.recipe_file import load_recipe
from pipelines.merge.run import merge
from schemas.errors import ConfigError, MergeError, TrajmillError
from schemas.merge import MergeRecipe

MERGEKIT = """
merge_method: ties
base_model: ./base
models:
  - model: a
    parameters: {density: [1, 0.5], weight: [{filter: mlp, value: 0.5}, {value: 1}]}
  - model: /else/b
    parameters: {weight: 0.3}
parameters: {normalize: true, int8_mask: true, density: 0.5}
dtype: float32
out_dtype: bfloat16
tokenizer: {source: union}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def test_mergekit_s_yaml(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path, MERGEKIT))
    assert recipe.method == "ties" and recipe.out_dtype == "bfloat16" and recipe.vocabulary == "union"
    assert recipe.base_model == str(tmp_path / "base")
    assert [s.model for s in recipe.models] == [str(tmp_path / "a"), "/else/b"]
    assert recipe.parameters == {"normalize": True, "density": 0.5}
    defaults = {"weight": float("nan"), "density": 1.0}
    first, second = recipe.models
    at = [model_parameters(recipe, first, f"model.layers.{i}.mlp.up", i, 3, defaults) for i in range(3)]
    assert [p["density"] for p in at] == [1, 0.75, 0.5] and [p["weight"] for p in at] == [0.5] * 3
    assert model_parameters(recipe, first, "model.norm", None, 3, defaults) == {"weight": 1.0, "density": 1.0}
    assert model_parameters(recipe, second, "x", 1, 3, defaults) == {"weight": 0.3, "density": 0.5}
    assert method_options(recipe, "x", 1, 3, {"normalize": 0.0, "lambda": 1.0}) == {"normalize": 1.0, "lambda": 1.0}


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=5), st.integers(2, 40))
def test_a_gradient_is_linear_between_its_anchors(anchors: list[float], layers: int) -> None:
    recipe = MergeRecipe.model_validate({"method": "slerp", "models": ["a", "b"], "parameters": {"t": anchors}})
    ours = [method_options(recipe, "x", i, layers, {"t": 0.0})["t"] for i in range(layers)]
    places = np.linspace(0, len(anchors) - 1, layers)
    np.testing.assert_allclose(ours, np.interp(places, range(len(anchors)), anchors), atol=1e-12)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method: linear\nmodels: [a]\nmodel: b\n", "3: model: no such field"),
        ("method: blend\nmodels: [a]\n", "method"),
        ("method: linear\n", "either models or slices"),
        ("method: linear\nmodels: [a]\ntokenizer_source: donor\n", "tokenizer_source"),
        ("method: linear\nmodels: [a]\ntokenizer: {source: base, tokens: {x: a}}\n", "tokenizer"),
        ("method: linear\nmodels: [a]\nchat_template: alpaca\n", "chat_template"),
        ("method: linear\nmodels: [{model: a, parameters: {weight: heavy}}]\n", "weight"),
        ("[1, 2]", "fields and values"),
        ("a: [", "not YAML"),
    ],
)
def test_what_a_recipe_cannot_say(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_recipe(written(tmp_path, text))
    assert "recipe.yaml" in str(caught.value)


def test_a_parameter_that_nobody_knows_or_that_is_missing(tmp_path: Path) -> None:
    a, b = (save(tmp_path / n, tensors(i)) for i, n in enumerate("ab"))
    for method, parameters, words in [
        ("linear", {"wieght": 1}, "no such parameter"),
        ("task_arithmetic", {}, "weight is not set"),
        ("slerp", {}, "t is not set"),
    ]:
        base = str(a) if method == "task_arithmetic" else None
        recipe = MergeRecipe.model_validate(
            {"method": method, "models": [str(a), str(b)], "base_model": base, "parameters": parameters}
        )
        with pytest.raises(MergeError, match=words):
            merge(recipe, tmp_path / "out")


def tokenizer(*added: str) -> str:
    vocabulary = {"a": 0, "b": 1}
    tokens = [
        {"id": 2 + i, "content": token, "special": True, "lstrip": False, "rstrip": False, "normalized": False}
        | {"single_word": False}
        for i, token in enumerate(added)
    ]
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    return json.dumps({"version": "1.0", "added_tokens": tokens, "model": model})


@pytest.mark.parametrize("rule", ["donor", "mean"])
def test_a_union_of_vocabularies(tmp_path: Path, rule: str) -> None:
    """Each model's rows go with its tokens, whatever their ids; a row that one lacks comes by the rule."""
    folders, embeddings = [], []
    for name, added in (("a", ("<x>",)), ("b", ("<y>", "<x>"))):
        shapes = {"model.embed_tokens.weight": (2 + len(added), 8), "model.norm.weight": (8,)}
        made = tensors(len(folders), torch.float32, shapes)
        folder = save(tmp_path / name, made, config={"vocab_size": 2 + len(added)})
        (folder / "tokenizer.json").write_text(tokenizer(*added))
        folders.append(str(folder))
        embeddings.append(made["model.embed_tokens.weight"])
    recipe = {"method": "linear", "models": folders}
    with pytest.raises(MergeError, match="vocabularies of"):
        merge(MergeRecipe.model_validate(recipe), tmp_path / "out")
    united = MergeRecipe.model_validate(recipe | {"vocabulary": "union", "missing_token": rule})
    out = merge(united, tmp_path / "out")
    ids = Tokenizer.from_file(str(out / "tokenizer.json")).get_vocab()
    assert ids == {"a": 0, "b": 1, "<x>": 2, "<y>": 3}
    a, b = embeddings
    missing = b[2] if rule == "donor" else a.mean(0)
    expected = torch.stack([(a[0] + b[0]) / 2, (a[1] + b[1]) / 2, (a[2] + b[3]) / 2, (missing + b[2]) / 2])
    torch.testing.assert_close(load_file(out / "model.safetensors")["model.embed_tokens.weight"], expected)
    assert json.loads((out / "config.json").read_text())["vocab_size"] == 4


def test_the_command(tmp_path: Path) -> None:
    made = [tensors(i, torch.float32) for i in range(3)]
    base, a, b = (str(save(tmp_path / n, m)) for n, m in zip(("base", "a", "b"), made, strict=True))
    runner = CliRunner()

    def run(*arguments: str) -> dict[str, torch.Tensor]:
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        done = runner.invoke(app, ["merge", *arguments, "--out", str(out)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return load_file(out / "model.safetensors")

    name = "model.layer.weight"
    x, y, z = (m[name] for m in made)
    torch.testing.assert_close(run(a, b, "--method", "linear", "--weights", "1,3")[name], y / 4 + z * 3 / 4)
    torch.testing.assert_close(run(base, a, b, "--ema", "0.5")[name], x / 4 + y / 4 + z / 2)
    added = run(a, b, "--base", base, "--method", "task_arithmetic", "--weights", "1,0.5", "--set", "lambda=2")
    torch.testing.assert_close(added[name], x + 2 * ((y - x) + (z - x) / 2), rtol=1e-4, atol=1e-5)
    path = written(tmp_path, "method: linear\nmodels: [a, b]\nout_dtype: float16\n")
    assert run(str(path))[name].dtype == torch.float16
    for arguments, words in [
        ([a, b], "--method"),
        ([a, b, "--method", "blend"], "method"),
        ([a, b, "--method", "linear", "--weights", "1"], "1 weights for 2 models"),
        ([a, b, "--method", "linear", "--weights", "1,x"], "'x' is no number"),
        ([a, b, "--method", "slerp", "--set", "t"], "--set t"),
        ([a, b, "--ema", "0.5", "--method", "linear"], "--ema"),
        ([str(path), "--method", "linear"], "a recipe says all"),
    ]:
        with pytest.raises(TrajmillError, match=words):
            runner.invoke(app, ["merge", *arguments, "--out", str(tmp_path / "no")], catch_exceptions=False)
    assert not (tmp_path / "no").exists()
