"""Merging folders: parity with torch, layouts, lineage, and nothing written when something is wrong."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_factory import SHAPES, Tensors, save, tensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from pipelines.files import sha256_of
from pipelines.merge import chunks, native
from pipelines.merge import plan as planning
from pipelines.merge.ema import ema_recipe
from pipelines.merge.run import merge
from pipelines.merge.vocabulary import Vocabulary
from schemas.errors import MergeError
from schemas.merge import MergeRecipe

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def recipe(
    *folders: Path, method: str = "linear", weights: list[float] | None = None, t: float | None = None, **rest: object
) -> MergeRecipe:
    models: list[object] = [str(f) for f in folders]
    if weights is not None:
        models = [{"model": m, "parameters": {"weight": w}} for m, w in zip(models, weights, strict=True)]
    parameters = {} if method != "slerp" else {"parameters": {"t": 0.5 if t is None else t}}
    return MergeRecipe.model_validate({"method": method, "models": models, **parameters, **rest})


def loaded(folder: Path) -> Tensors:
    return {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


def slerp(t: float, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As one would write it with torch, in float64 for the angle."""
    x, y = a.double().flatten(), b.double().flatten()
    cosine = (x @ y) / (x.norm() * y.norm())
    if not torch.isfinite(cosine) or cosine.abs() > 0.9995:
        return (1 - t) * a.float() + t * b.float()
    angle = torch.acos(cosine)
    return (
        torch.sin((1 - t) * angle) / torch.sin(angle) * a.float() + torch.sin(t * angle) / torch.sin(angle) * b.float()
    )


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("shards", [1, 3])
def test_linear_is_bit_identical_to_torch(tmp_path: Path, dtype: str, shards: int) -> None:
    made = [tensors(seed, DTYPES[dtype]) for seed in range(3)]
    # Each model in another layout: names are matched, not files.
    folders = [save(tmp_path / str(i), m, shards=shards if i != 1 else 1) for i, m in enumerate(made)]
    out = merge(recipe(*folders, weights=[2, 1, 5]), tmp_path / "out")
    merged = loaded(out)
    assert merged.keys() == SHAPES.keys()
    for name, tensor in merged.items():
        a, b, c = (m[name].float() for m in made)
        expected = (a * (2 / 8) + b * (1 / 8) + c * (5 / 8)).to(DTYPES[dtype])
        assert tensor.dtype == expected.dtype and torch.equal(tensor, expected)
    assert sorted(p.name for p in out.glob("*.safetensors*")) == sorted(
        p.name for p in folders[0].glob("*.safetensors*")
    )


def test_slerp_agrees_with_torch(tmp_path: Path) -> None:
    made = [tensors(seed, torch.float32) for seed in range(2)]
    made[1]["model.norm.weight"] = made[0]["model.norm.weight"] * 1.5  # parallel
    made[1]["model.embed.weight"] = torch.zeros_like(made[0]["model.embed.weight"])
    folders = [save(tmp_path / str(i), m, shards=2) for i, m in enumerate(made)]
    merged = loaded(merge(recipe(*folders, method="slerp", t=0.3), tmp_path / "out"))
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, slerp(0.3, made[0][name], made[1][name]), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_another_dtype_is_rounded_once(tmp_path: Path, dtype: str) -> None:
    made = [tensors(seed, torch.bfloat16) for seed in range(2)]
    folders = [save(tmp_path / str(i), m, shards=2) for i, m in enumerate(made)]
    out = merge(recipe(*folders, out_dtype=dtype), tmp_path / "out")
    for name, tensor in loaded(out).items():
        assert torch.equal(tensor, (made[0][name].float() * 0.5 + made[1][name].float() * 0.5).to(DTYPES[dtype]))
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == dtype
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in loaded(out).values())


def test_mixed_dtypes_stay_and_files_are_aligned(tmp_path: Path) -> None:
    mixed = [tensors(s) | tensors(s, torch.float32, {"a_bias": (5,), "odd": (3, 1)}) for s in range(2)]
    out = merge(recipe(*(save(tmp_path / str(i), m) for i, m in enumerate(mixed))), tmp_path / "out")
    for name, tensor in loaded(out).items():
        assert tensor.dtype == mixed[0][name].dtype
    raw = (out / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert length % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}
    spans = sorted(entry["data_offsets"] for entry in header.values())
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert all(e["data_offsets"][0] % {"F32": 4, "BF16": 2}[e["dtype"]] == 0 for e in header.values())


def test_lineage_is_true_and_goes_back(tmp_path: Path) -> None:
    a, b, c = (save(tmp_path / str(i), tensors(i)) for i in range(3))
    first = merge(recipe(a, b), tmp_path / "first")
    second = merge(recipe(first, c, method="slerp", t=0.2), tmp_path / "second")
    lineage = json.loads((second / "lineage.json").read_text())
    assert lineage["recipe"]["method"] == "slerp" and lineage["recipe"]["parameters"] == {"t": 0.2}
    for folder, files in ((second, lineage["files"]), *((Path(p["path"]), p["files"]) for p in lineage["parents"])):
        for file in files:
            path = folder / file["file"]
            assert file["sha256"] == sha256_of(path) and file["bytes"] == path.stat().st_size
    grandparents = lineage["parents"][0]["lineage"]["parents"]
    assert [p["files"][0]["sha256"] for p in grandparents] == [sha256_of(f / "model.safetensors") for f in (a, b)]
    assert lineage["parents"][1]["lineage"] is None
    names = sorted(p.name for p in second.iterdir())
    assert names == ["config.json", "lineage.json", "model.safetensors", "tokenizer.json"]


def test_the_same_merge_gives_the_same_bytes(tmp_path: Path) -> None:
    folders = [save(tmp_path / str(i), tensors(i), shards=2) for i in range(2)]
    for method in ("linear", "slerp"):
        outs = [merge(recipe(*folders, method=method), tmp_path / f"{method}{i}") for i in range(2)]
        first, again = ({p.name: p.read_bytes() for p in out.iterdir()} for out in outs)
        assert first == again


def test_every_mismatch_is_listed_and_nothing_written(tmp_path: Path) -> None:
    other = tensors(1)
    other["scale"] = other["scale"].to(torch.int32)
    other["model.norm.weight"] = torch.ones(9, dtype=torch.bfloat16)
    other["lm_head.weight"] = other.pop("model.embed.weight")
    a = save(tmp_path / "a", tensors(0))
    b = save(tmp_path / "b", other, config={"num_attention_heads": 4})
    (b / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 1, "b": 0}}}))
    with pytest.raises(MergeError) as caught:
        merge(recipe(a, b, parameters={"weight": 1, "density": 0.5, "t": 1}), tmp_path / "out")
    for words in [
        "parameters.density: linear has no such parameter",
        "parameters.t: linear has no such parameter",
        "num_attention_heads: 2 in",
        "4 entries of the vocabularies",
        "scale: I32 cannot be averaged",
        "model.norm.weight: shape [8]",
        "lm_head.weight: in",
        "its output head is tied",
        "model.embed.weight: in",
    ]:
        assert words in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_unusable_recipes_and_dtypes(tmp_path: Path) -> None:
    whole = {"steps": torch.ones(3, dtype=torch.int64)}
    a, b, c = (save(tmp_path / str(i), tensors(i)) for i in range(3))
    d, e = (save(tmp_path / f"i{i}", whole) for i in range(2))
    for made, words in [
        (recipe(a, b, c, method="slerp"), "slerp takes 1 to 2 models, not 3"),
        (recipe(a, b, method="slerp", weights=[1, 1]), r"models\.0\.parameters\.weight: slerp has no such"),
        (recipe(a, b, base_model=str(c)), "base_model: linear averages it too"),
        (recipe(a, method="passthrough", base_model=str(c)), "passthrough takes 1 models, not 2"),
        (recipe(a, b, weights=[1, -1]), "no sum other than 0"),
        (recipe(d, e), "I64 cannot be averaged"),
        (recipe(a, tmp_path / "nowhere"), "neither model.safetensors nor"),
    ]:
        with pytest.raises(MergeError, match=words):
            merge(made, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.tmp").exists()


@pytest.mark.parametrize("method", ["linear", "slerp"])
def test_a_value_that_is_not_finite_names_its_tensor(tmp_path: Path, method: str) -> None:
    bad = tensors(1)
    bad["model.layer.weight"][299, 1000] = float("nan")
    a, b = save(tmp_path / "a", tensors(0)), save(tmp_path / "b", bad)
    with pytest.raises(MergeError, match=r"model\.layer\.weight: NaN or infinity in .*/b$"):
        merge(recipe(a, b, method=method), tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_an_overflow_of_the_output_dtype_names_its_tensor(tmp_path: Path) -> None:
    big = [tensors(i, torch.float32) for i in range(2)]
    for made in big:
        made["scale"] = torch.tensor(1e6)
    folders = [save(tmp_path / str(i), m) for i, m in enumerate(big)]
    with pytest.raises(MergeError, match="scale: the merged values overflow F16"):
        merge(recipe(*folders, out_dtype="float16"), tmp_path / "out")


def test_an_existing_target_is_refused(tmp_path: Path) -> None:
    a, b = (save(tmp_path / str(i), tensors(i)) for i in range(2))
    (tmp_path / "out").mkdir()
    with pytest.raises(MergeError, match="exists"):
        merge(recipe(a, b), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_transformers_and_safetensors_open_it(tmp_path: Path) -> None:
    folders = [save(tmp_path / str(i), tensors(i)) for i in range(2)]
    out = merge(recipe(*folders), tmp_path / "out")
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"} and set(file.keys()) == set(SHAPES)


def test_models_of_different_dtypes(tmp_path: Path) -> None:
    made = [tensors(seed, dtype) for seed, dtype in enumerate(DTYPES.values())]
    folders = [save(tmp_path / str(i), m, shards=i + 1) for i, m in enumerate(made)]
    for dtype in (None, *DTYPES):
        out = merge(recipe(*folders, weights=[1, 1, 2], out_dtype=dtype), tmp_path / f"out{dtype}")
        for name, tensor in loaded(out).items():
            a, b, c = (m[name].float() for m in made)
            assert torch.equal(tensor, (a * 0.25 + b * 0.25 + c * 0.5).to(DTYPES[dtype or "float32"]))


@pytest.mark.parametrize("method", ["linear", "slerp"])
def test_without_a_compiler_the_bytes_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    folders = [save(tmp_path / str(i), tensors(i, list(DTYPES.values())[i + 1]), shards=2) for i in range(2)]
    fast = merge(recipe(*folders, method=method), tmp_path / "fast")
    monkeypatch.setattr(native, "library", lambda: None)
    slow = merge(recipe(*folders, method=method), tmp_path / "slow")
    assert {p.name: p.read_bytes() for p in fast.iterdir()} == {p.name: p.read_bytes() for p in slow.iterdir()}


@pytest.mark.parametrize("method", ["linear", "slerp"])
def test_two_workers_give_the_same_bytes(tmp_path: Path, method: str) -> None:
    folders = [save(tmp_path / str(i), tensors(i), shards=4) for i in range(2)]
    one = merge(recipe(*folders, method=method), tmp_path / "one")
    two = merge(recipe(*folders, method=method), tmp_path / "two", workers=2)
    assert {p.name: p.read_bytes() for p in one.iterdir()} == {p.name: p.read_bytes() for p in two.iterdir()}


def test_a_worker_s_error_is_our_error_and_leaves_nothing(tmp_path: Path) -> None:
    bad = tensors(1)
    bad["scale"] = torch.tensor(float("nan"))
    a, b = save(tmp_path / "a", tensors(0), shards=3), save(tmp_path / "b", bad, shards=3)
    with pytest.raises(MergeError, match=r"scale: NaN or infinity in .*/b"):
        merge(recipe(a, b), tmp_path / "out", workers=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_shapes_of_all_kinds(tmp_path: Path) -> None:
    shapes = {"none": (0, 4), "wide": (3, 150_000), "row": (1,), "scalar": (), "cube": (5, 7, 9), "hollow": (4, 0)}
    made = [tensors(seed, torch.float32, shapes) for seed in range(2)]
    folders = [save(tmp_path / str(i), m) for i, m in enumerate(made)]
    for method in ("linear", "slerp"):
        merged = loaded(merge(recipe(*folders, method=method), tmp_path / method))
        assert {n: tuple(t.shape) for n, t in merged.items()} == shapes
    for name, tensor in loaded(tmp_path / "linear").items():
        assert torch.equal(tensor, made[0][name] * 0.5 + made[1][name] * 0.5)


def layered(seed: int, layers: int, width: int = 4) -> Tensors:
    shapes = {"model.embed_tokens.weight": (6, width), "model.norm.weight": (width,), "lm_head.weight": (6, width)}
    return tensors(seed, shapes=shapes | {f"model.layers.{i}.mlp.weight": (width, width) for i in range(layers)})


def slices(*parts: list[tuple[Path, int, int]], **rest: object) -> MergeRecipe:
    made = [{"sources": [{"model": str(f), "layer_range": [a, b]} for f, a, b in part]} for part in parts]
    return MergeRecipe.model_validate({"method": "passthrough", "slices": made, **rest})


def test_layers_are_stacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_SHARD_BYTES", 100)
    made = [layered(0, 3), layered(1, 12)]
    config = {"layer_types": ["a", "b", "c"]}
    a = save(tmp_path / "a", made[0], config={"num_hidden_layers": 3, **config})
    b = save(tmp_path / "b", made[1], config={"num_hidden_layers": 12, "layer_types": list("abcdefghijkl")})
    out = merge(slices([(a, 0, 2)], [(b, 10, 12)], [(a, 1, 3)]), tmp_path / "out")
    merged = loaded(out)
    origin = [(0, 0), (0, 1), (1, 10), (1, 11), (0, 1), (0, 2)]
    expected = {
        f"model.layers.{i}.mlp.weight": made[m][f"model.layers.{j}.mlp.weight"] for i, (m, j) in enumerate(origin)
    }
    expected |= {n: t for n, t in made[0].items() if "layers" not in n}
    assert merged.keys() == expected.keys() and all(torch.equal(merged[n], t) for n, t in expected.items())
    written = json.loads((out / "config.json").read_text())
    assert written["num_hidden_layers"] == 6 and written["layer_types"] == list("abklbc")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(expected)
    files = sorted(p.name for p in out.glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"


def test_slices_are_merged_by_other_methods(tmp_path: Path) -> None:
    made = [layered(0, 3), layered(1, 3)]
    a, b = (save(tmp_path / str(i), m) for i, m in enumerate(made))
    out = merge(slices([(a, 0, 2), (b, 1, 3)], method="linear"), tmp_path / "out")
    merged = loaded(out)
    for i in range(2):
        pair = made[0][f"model.layers.{i}.mlp.weight"], made[1][f"model.layers.{i + 1}.mlp.weight"]
        expected = (pair[0].float() * 0.5 + pair[1].float() * 0.5).bfloat16()
        assert torch.equal(merged[f"model.layers.{i}.mlp.weight"], expected)
    assert len(merged) == 5


def test_slices_that_do_not_fit(tmp_path: Path) -> None:
    a, b = (save(tmp_path / str(i), layered(i, 3)) for i in range(2))
    with pytest.raises(MergeError, match=r"slices\.0: its sources have 1, 2 layers"):
        merge(slices([(a, 0, 2), (b, 0, 1)], method="linear"), tmp_path / "out")
    with pytest.raises(MergeError, match=r"layer_range \[0, 4\], but .* has 3 layers"):
        merge(slices([(a, 0, 4)]), tmp_path / "out")


@pytest.mark.parametrize("rule", ["donor", "mean"])
def test_rows_are_gathered_by_the_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    embeddings = [torch.randn(6, 4), torch.randn(5, 4)]
    made = [{"model.embed_tokens.weight": e, "model.norm.weight": torch.ones(4)} for e in embeddings]
    a, b = (save(tmp_path / str(i), m, config={"vocab_size": len(embeddings[i])}) for i, m in enumerate(made))
    rows = {a: np.array([0, 1, -1, 3, 4, -1, 2]), b: np.array([-1, 0, 4, 3, -1, -1, 1])}
    own = {a: np.array([0, 1, 2, 3, 4]), b: np.array([0, 1, 3, 4, 9])}  # the others are padding; 9 has no row
    monkeypatch.setattr(planning, "reconcile", lambda *_: Vocabulary(7, rows, own, b"{}", {}))
    monkeypatch.setattr(chunks, "CHUNK", 8)  # two rows
    out = merge(recipe(a, b, vocabulary="union", missing_token=rule), tmp_path / "out")
    sides = []
    for folder, embedding in zip((a, b), embeddings, strict=True):
        given_rows = [embedding[r] if r >= 0 else torch.full((4,), torch.nan) for r in rows[folder].tolist()]
        sides.append(torch.stack(given_rows))
    filled = []
    means = [embeddings[0][[0, 1, 2, 3, 4]].mean(0), embeddings[1][[0, 1, 3, 4]].mean(0)]
    for side, other, mean in zip(sides, sides[::-1], means, strict=True):
        missing = mean.expand(7, 4) if rule == "mean" else torch.nan_to_num(other)
        filled.append(torch.where(side.isnan(), missing, side))
    torch.testing.assert_close(loaded(out)["model.embed_tokens.weight"], filled[0] * 0.5 + filled[1] * 0.5)
    assert json.loads((out / "config.json").read_text())["vocab_size"] == 7
    assert (out / "tokenizer.json").read_bytes() == b"{}"


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.floats(0, 0.999))
def test_an_average_along_a_run_is_the_recurrence(values: list[float], decay: float) -> None:
    made = ema_recipe([f"step-{i}" for i in range(len(values))], decay)
    weights = [source.parameters["weight"] for source in made.models]
    average = values[0]
    for value in values[1:]:
        average = decay * average + (1 - decay) * value
    assert math.isclose(math.fsum(w * v for w, v in zip(weights, values, strict=True)), average, abs_tol=1e-9)  # type: ignore[operator]
    assert math.isclose(math.fsum(weights), 1, abs_tol=1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize(("steps", "decay"), [([], 0.5), (["a"], 1.0), (["a"], -0.1)])
def test_no_average_along_nothing(steps: list[str], decay: float) -> None:
    with pytest.raises(MergeError):
        ema_recipe(steps, decay)
