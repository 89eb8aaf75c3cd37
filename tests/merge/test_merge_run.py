"""Merging folders: parity with torch, layouts, lineage, and nothing written when something is wrong."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from checkpoint_factory import SHAPES, Tensors, save, tensors
from safetensors import safe_open
from safetensors.torch import load_file

from pipelines.files import sha256_of
from pipelines.merge.run import merge
from schemas.errors import MergeError
from schemas.recipe import MergeRecipe

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def recipe(*folders: Path, method: str = "linear", **rest: object) -> MergeRecipe:
    return MergeRecipe.model_validate({"method": method, "models": [str(f) for f in folders], **rest})


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
    out = merge(recipe(*folders, dtype=dtype), tmp_path / "out")
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
    assert lineage["recipe"]["method"] == "slerp" and lineage["recipe"]["t"] == 0.2
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
    other["scale"] = other["scale"].float()
    other["model.norm.weight"] = torch.ones(9, dtype=torch.bfloat16)
    other["lm_head.weight"] = other.pop("model.embed.weight")
    a = save(tmp_path / "a", tensors(0))
    b = save(tmp_path / "b", other, config={"num_attention_heads": 4})
    (b / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 1, "b": 0}}}))
    with pytest.raises(MergeError) as caught:
        merge(recipe(a, b, weights=[1, 2, 3]), tmp_path / "out")
    for words in [
        "3 weights for 2 models",
        "num_attention_heads: 2 in",
        "4 entries of the vocabularies",
        "scale: dtype BF16",
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
        (recipe(a, b, c, method="slerp"), "two models, not 3"),
        (recipe(a, b, method="slerp", weights=[1, 1]), "t, not weights"),
        (recipe(a, b, weights=[1, -1]), "no finite sum"),
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
    with pytest.raises(MergeError, match=r"model\.layer\.weight"):
        merge(recipe(a, b, method=method), tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_an_overflow_of_the_output_dtype_names_its_tensor(tmp_path: Path) -> None:
    big = [tensors(i, torch.float32) for i in range(2)]
    for made in big:
        made["scale"] = torch.tensor(1e6)
    folders = [save(tmp_path / str(i), m) for i, m in enumerate(big)]
    with pytest.raises(MergeError, match="scale: the merged values overflow F16"):
        merge(recipe(*folders, dtype="float16"), tmp_path / "out")


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
