"""Recipes: mergekit's YAML and ours, parameters by layer and name, vocabularies."""

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

from pipelines.merge.parameters import method_options, model_parameters
from pipelines.merge.recipe_file import load_recipe
from pipelines.merge.run import merge
from schemas.errors import ConfigError, MergeError
from schemas.merge import Filtered, LayerSource, MergeRecipe, Slice, Source

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


# As in the examples that mergekit's documentation has for each kind of merge.
LINEAR = """
models:
  - model: one
    parameters: {weight: 1.0}
  - model: two
    parameters: {weight: 0.3}
merge_method: linear
dtype: float16
"""
SLERP = """
slices:
  - sources:
      - model: one
        layer_range: [0, 32]
      - model: two
        layer_range: [0, 32]
merge_method: slerp
base_model: one
parameters:
  t:
    - filter: self_attn
      value: [0, 0.5, 0.3, 0.7, 1]
    - filter: mlp
      value: [1, 0.5, 0.7, 0.3, 0]
    - value: 0.5
dtype: bfloat16
"""
TIES = """
models:
  - model: one
    parameters:
      density: [1, 0.7, 0.1]
      weight: 1.0
  - model: two
    parameters:
      density: 0.33
      weight:
        - filter: mlp
          value: 0.5
        - value: 0
merge_method: ties
base_model: base
parameters:
  normalize: true
  int8_mask: true
dtype: float16
tokenizer_source: union
"""
STACK = """
slices:
  - sources:
    - {model: one, layer_range: [0, 24]}
  - sources:
    - {model: two, layer_range: [8, 32]}
    parameters: {scale: 1e-1}
merge_method: passthrough
dtype: float32
out_dtype: float16
tokenizer: {source: base, pad_to_multiple_of: null}
chat_template: auto
"""


NUMBERS = st.floats(-10, 10)


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


def test_the_examples_of_mergekit_s_documentation(tmp_path: Path) -> None:
    linear = load_recipe(written(tmp_path, LINEAR))
    assert (linear.method, linear.out_dtype) == ("linear", "float16")
    assert [s.model for s in linear.models] == [str(tmp_path / "one"), str(tmp_path / "two")]
    slerp = load_recipe(written(tmp_path, SLERP))
    assert slerp.base_model == slerp.slices[0].sources[0].model == str(tmp_path / "one")
    at = [method_options(slerp, n, 8, 33, {"t": 0.0})["t"] for n in ("x.self_attn.q", "x.mlp.up", "norm")]
    assert at == [0.5, 0.5, 0.5]
    assert method_options(slerp, "x.mlp.up", 32, 33, {"t": 0.0}) == {"t": 0.0}
    ties = load_recipe(written(tmp_path, TIES))
    assert (ties.vocabulary, ties.parameters) == ("union", {"normalize": True})
    defaults = {"weight": 1.0, "density": 1.0}
    assert model_parameters(ties, ties.models[1], "mlp", 0, 2, defaults) == {"weight": 0.5, "density": 0.33}
    stack = load_recipe(written(tmp_path, STACK))
    assert (stack.vocabulary, stack.out_dtype) == ("base", "float16")
    for part, scale in zip(stack.slices, (1.0, 0.1), strict=True):
        assert model_parameters(stack, part.sources[0], "x", 0, 24, {"scale": 1.0}, part) == {"scale": scale}


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=5), st.integers(2, 40))
def test_a_gradient_is_linear_between_its_anchors(anchors: list[float], layers: int) -> None:
    recipe = MergeRecipe.model_validate({"method": "slerp", "models": ["a", "b"], "parameters": {"t": anchors}})
    ours = [method_options(recipe, "x", i, layers, {"t": 0.0})["t"] for i in range(layers)]
    places = np.linspace(0, len(anchors) - 1, layers)
    np.testing.assert_allclose(ours, np.interp(places, range(len(anchors)), anchors), atol=1e-12)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method: linear\nmodels: [a]\nmodel: b\n", ":3: model: no such field"),
        ("method: blend\nmodels: [a]\n", "method"),
        ("method: linear\n", "either models or slices"),
        ("method: linear\nmodels: [{model: a, parameters: {weight: heavy}}]\n", "weight"),
        ("[1, 2]", "fields and values"),
        ("a: [", "not YAML"),
    ],
)
def test_what_a_recipe_cannot_say(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_recipe(written(tmp_path, text))
    assert "recipe.yaml" in str(caught.value)


HOSTILE = [
    ("wieght: 1", ":2: wieght: no such field"),
    ("chat_template: chatml", ":2: chat_template: only auto"),
    ("chat_template: {a: 1}", ":2: chat_template: only auto"),
    ("tokenizer_source: one", ":2: tokenizer_source: 'one' is neither base nor union"),
    ("tokenizer_source: [base]", ":2: tokenizer_source: ['base'] is neither"),
    ("tokenizer:\n  source: one", ":3: tokenizer.source: 'one' is neither"),
    ("tokenizer: {source: union, tokens: {a: {}}}", ":2: tokenizer.tokens: only its source"),
    ("tokenizer:\n  pad_to_multiple_of: 64", ":3: tokenizer.pad_to_multiple_of: only its source"),
    ("tokenizer: 3", ":2: tokenizer: not an object"),
    ("tokenizer_source: base\nvocabulary: union", ":2: tokenizer_source: the vocabulary is set twice"),
    ("vocabulary: union\ntokenizer: {}", ":3: tokenizer.source: the vocabulary is set twice"),
    ("tokenizer_source: base\ntokenizer: {source: base}", ":2: tokenizer_source: the vocabulary is set twice"),
    ("dtype: float64", ":2: dtype: Input"),
    ("out_dtype: null\ndtype: float64", ":3: dtype: Input"),
    ("dtype: float32\nout_dtype: int8", ":3: out_dtype: Input"),
    ("parameters: {t: [a, b]}", ":2: parameters.t: neither a number"),
    ("parameters: {t: []}", ":2: parameters.t: neither a number"),
    ("parameters: {t: null}", ":2: parameters.t: neither a number"),
    ("parameters: {t: [true, false]}", ":2: parameters.t: neither a number"),
    ("parameters: {t: .nan}", ":2: parameters.t: neither a number"),
    ("parameters: {t: [{filter: 3, value: 1}]}", ":2: parameters.t: neither a number"),
    ("parameters: 3", ":2: parameters: "),
    ("slices: [{sources: [{model: a, layer_range: [3, 3]}]}]", "holds no layer"),
    ("slices: [3]", ":2: slices.0: "),
    ("slices: [{sources: &s [*s]}]", ":2: slices.0.sources.0: "),
    ("models: 3", ":2: models: "),
    ("models: null", "either models or slices"),
    ("modules: {}", ":2: modules: no such field"),
    ("seed: 2001-99-99", "not YAML"),
    ("seed: " + "[" * 5000, "not YAML"),
    ("seed: &a [*a]", ":2: seed: "),
    ("parameters: &a {t: *a}", ":2: parameters.t: "),
    ("- 1", "not YAML"),
    ("3: 4", ":2: 3: "),
]


@pytest.mark.parametrize(("text", "words"), HOSTILE)
def test_hostile_yaml(tmp_path: Path, text: str, words: str) -> None:
    whole = f"merge_method: linear\n{text}\n" + ("" if text.startswith(("models", "slices")) else "models: [a]\n")
    with pytest.raises(ConfigError) as caught:
        load_recipe(written(tmp_path, whole))
    assert "recipe.yaml:" in str(caught.value) and words in str(caught.value)


NULLS = [
    "base_model", "dtype", "out_dtype", "tokenizer_source", "tokenizer", "chat_template", "parameters", "slices",
    "modules",
]  # fmt: skip


@pytest.mark.parametrize("name", NULLS)
def test_a_null_of_mergekit_is_as_good_as_absent(tmp_path: Path, name: str) -> None:
    plain = "merge_method: linear\nmodels: [a]\n"
    assert load_recipe(written(tmp_path, f"{plain}{name}: null\n")) == load_recipe(written(tmp_path, plain))


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("models: [a]\nout_dtype: null\ndtype: float16", "out_dtype", "float16"),
        ("models: [a]\ndtype: float32\nout_dtype: float16", "out_dtype", "float16"),
        ("models: [a]\ntokenizer: {}", "vocabulary", "union"),
        ("models: [a]\ntokenizer: {source: base, tokens: null, pad_to_multiple_of: null}", "vocabulary", "base"),
        ("models: [a]\ntokenizer: {tokens: {}}\ntokenizer_source: null", "vocabulary", "union"),
        ("models: [a]\nparameters: {t: {filter: x, value: 1}}", "parameters", {"t": [Filtered(filter="x", value=1)]}),
        ("models: [{model: /a, parameters: null}]", "models", [Source(model="/a")]),
        (
            "models: null\nslices: [{sources: [{model: /a, layer_range: [0, 1], parameters: null}], parameters: null,"
            " base_model: null, residual_weight: null}]",
            "slices",
            [Slice(sources=[LayerSource(model="/a", layer_range=(0, 1))])],
        ),
    ],
)  # fmt: skip
def test_all_forms_of_mergekit(tmp_path: Path, text: str, field: str, value: object) -> None:
    assert getattr(load_recipe(written(tmp_path, f"merge_method: linear\n{text}\n")), field) == value


def linear(**fields: object) -> MergeRecipe:
    return MergeRecipe.model_validate({"method": "linear", "models": ["a"], **fields})


@given(st.lists(NUMBERS, min_size=1, max_size=6))
def test_gradient_outside_and_single_layer(anchors: list[float]) -> None:
    recipe = linear(parameters={"t": anchors})
    assert method_options(recipe, "embed", None, 5, {"t": 0.0}) == {"t": anchors[0]}
    assert method_options(recipe, "x", 0, 1, {"t": 0.0}) == {"t": anchors[-1]}


@given(st.lists(st.tuples(st.sampled_from(["mlp", "attn", "*", None]), NUMBERS), min_size=1, max_size=5))
def test_first_filter_that_fits_counts(filters: list[tuple[str | None, float]]) -> None:
    source = Source.model_validate(
        {"model": "a", "parameters": {"weight": [{"filter": f, "value": v} for f, v in filters]}}
    )
    recipe = linear(models=[source], parameters={"weight": 77.0})
    fitting = [v for f, v in filters if f in ("mlp", "*", None)]
    found = model_parameters(recipe, source, "layers.3.mlp.up", 3, 9, {"weight": 1.0})["weight"]
    assert found == (fitting[0] if fitting else 77.0)


def test_a_parameter_that_must_be_set() -> None:
    recipe = linear()
    with pytest.raises(MergeError, match="x: the parameter weight is not set for a"):
        model_parameters(recipe, recipe.models[0], "x", 0, 1, {"weight": float("nan")})


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
