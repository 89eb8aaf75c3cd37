"""The command `trajmill merge`, by recipe and by options."""

from pathlib import Path

import pytest
import torch
from checkpoint_factory import save, tensors
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from pipelines.cli import app
from schemas.errors import TrajmillError


@pytest.fixture
def trio(tmp_path: Path) -> list[Path]:
    """A base and two models."""
    return [save(tmp_path / name, tensors(seed, torch.float32)) for seed, name in enumerate(("base", "a", "b"))]


def trajmill(*words: object) -> Result:
    return CliRunner().invoke(app, ["merge", *map(str, words)])


def check(out: Path, trio: list[Path], shares: tuple[float, float, float]) -> None:
    *parents, merged = (load_file(folder / "model.safetensors") for folder in (*trio, out))
    for name, tensor in merged.items():
        expected = sum(parent[name].float() * share for parent, share in zip(parents, shares, strict=True))
        torch.testing.assert_close(tensor.float(), expected, rtol=1e-2, atol=1e-2)


def test_a_recipe_file(tmp_path: Path, trio: list[Path]) -> None:
    (tmp_path / "r.yaml").write_text(
        "merge_method: linear\nmodels:\n- {model: a, parameters: {weight: 3}}\n- {model: b, parameters: {weight: 1}}\n"
        "dtype: bfloat16\n"
    )
    result = trajmill(tmp_path / "r.yaml", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    check(tmp_path / "out", trio, (0, 0.75, 0.25))
    assert all(t.dtype == torch.bfloat16 for t in load_file(tmp_path / "out" / "model.safetensors").values())


@pytest.mark.parametrize(
    ("models", "options", "shares"),
    [
        ("ab", ["--method", "linear"], (0, 0.5, 0.5)),
        ("ab", ["--method", "linear", "--weights", "0.25,0.75", "--seed", 3], (0, 0.25, 0.75)),
        ("ab", ["--method", "linear", "--weights", "1,2", "--set", "normalize=0", "--dtype", "float32"], (0, 1, 2)),
        ("*ab", ["--ema", 0.5], (0.25, 0.25, 0.5)),
        ("ab", ["--method", "slerp", "--set", "t=0"], (0, 1, 0)),
        ("ab", ["--base", "*", "--method", "task_arithmetic", "--weights", "1,0.5", "--set", "lambda=2"], (-2, 2, 1)),
    ],
)
def test_options(
    tmp_path: Path, trio: list[Path], models: str, options: list[object], shares: tuple[float, float, float]
) -> None:
    places = dict(zip("*ab", trio, strict=True))
    words = [places.get(str(option), option) for option in options]
    result = trajmill(*(places[m] for m in models), "--out", tmp_path / "out", *words)
    assert result.exit_code == 0, (result.output, result.exception)
    check(tmp_path / "out", trio, shares)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--method"),
        (["--method", "magic"], "merge: method: "),
        (["--method", "linear", "--weights", "1"], "1 weights for 2 models"),
        (["--method", "linear", "--weights", "1,x"], "'x' is no number"),
        (["--method", "linear", "--set", "t=[]"], "--set t: '[]' is no number"),
        (["--method", "slerp", "--set", "t"], "--set t"),
        (["--ema", 0.5, "--weights", "1,2"], "--ema"),
        (["--ema", 1], "decay 1"),
    ],
)
def test_impossible_options(tmp_path: Path, trio: list[Path], options: list[object], words: str) -> None:
    result = trajmill(*trio[1:], "--out", tmp_path / "out", *options)
    assert isinstance(result.exception, TrajmillError) and words in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_recipe_file_says_all(tmp_path: Path) -> None:
    result = trajmill(tmp_path / "r.yaml", "--out", tmp_path / "out", "--method", "linear")
    assert isinstance(result.exception, TrajmillError) and "a recipe says all" in str(result.exception)
