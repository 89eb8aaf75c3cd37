"""Training: what it writes, that it goes on exactly after a kill, and what it refuses."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_llama import examples, write_llama
from transformers import AutoModelForCausalLM

from agents.engine import files
from agents.engine.config import from_folder
from agents.engine.models.llama import Llama
from agents.engine.tokenizer import load_tokenizer
from agents.engine.weights import open_checkpoint
from pipelines.files import sha256_of
from pipelines.posttrain import sft
from pipelines.posttrain.checkpoint import export_base, load_tensors
from pipelines.posttrain.examples import Example
from schemas.errors import ConfigError, InputError, StageError
from schemas.posttrain import TrainSettings

SETTINGS = TrainSettings(epochs=2, batch_samples=4, pack_tokens=60, learning_rate=1e-2, save_every=3, threads=1)
HERE = Path(__file__).parent


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "model.safetensors")[0]


def distance(one: Path, other: Path) -> float:
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    return max((a[n] - b[n]).abs().max().item() for n in a)


def losses(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]


def test_it_learns_and_says_where_from(tmp_path: Path) -> None:
    base = write_llama(tmp_path / "base")
    made = examples(10)
    settings = SETTINGS.model_copy(update={"epochs": 20})
    out = sft.train(base, made, tmp_path / "out", settings, {"shards": {"tokens/a.parquet": "00"}})
    found = losses(out)
    assert [row["step"] for row in found] == list(range(1, 51))
    assert found[-1]["loss"] < found[0]["loss"] / 3
    assert all(row["computed"] < row["seen"] for row in found)
    lineage = json.loads((out / "lineage.json").read_text())
    assert lineage["base"] == {
        "name": "base",
        "sha256": {"model.safetensors": sha256_of(base / "model.safetensors")},
        "lineage": {"made_by": "test"},
    }
    assert lineage["examples"]["lineage"] == {"shards": {"tokens/a.parquet": "00"}}
    assert lineage["settings"] == settings.model_dump()
    assert lineage["tokens_trained"] == 20 * sum(int(e.loss_mask.sum()) for e in made)
    assert (lineage["steps"], lineage["examples"]["samples"]) == (50, 10)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "out"]
    # The same again does nothing; anything else is refused.
    before = (out / "lineage.json").stat().st_mtime_ns
    assert sft.train(base, made[::-1], out, settings, {"shards": {"tokens/a.parquet": "00"}}) == out
    assert (out / "lineage.json").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="give another folder"):
        sft.train(base, made, out, settings.model_copy(update={"seed": 1}), {})


def test_packing_does_not_change_the_training(tmp_path: Path) -> None:
    base, made = write_llama(tmp_path / "base"), examples(11)
    one = sft.train(base, made, tmp_path / "one", SETTINGS.model_copy(update={"pack_tokens": 10_000}), {})
    for name, changed in (("many", {"pack_tokens": 1}), ("apart", {"share_prefix": False})):
        other = sft.train(base, made, tmp_path / name, SETTINGS.model_copy(update=changed), {})
        # Adam divides by the gradient's size, so rounding of near-zero gradients is magnified.
        assert distance(one, other) < 2e-3
        assert [r["loss"] for r in losses(one)] == pytest.approx([r["loss"] for r in losses(other)], rel=1e-4)


CHILD = """
import sys, time
from pathlib import Path
sys.path[:0] = [{here!r}, {root!r}]
from small_llama import examples
from pipelines.posttrain import sft
from schemas.posttrain import TrainSettings
real = sft._Training._step
def slow(self, step):
    print(step, flush=True)
    if step == 7:
        time.sleep(60)
    return real(self, step)
sft._Training._step = slow
settings = TrainSettings.model_validate_json({settings!r})
sft.train(Path({base!r}), examples(20), Path({out!r}), settings, {{}})
"""


def test_a_killed_training_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_llama(tmp_path / "base")
    whole = sft.train(base, examples(20), tmp_path / "whole", SETTINGS, {})
    out = tmp_path / "killed"
    code = CHILD.format(
        here=str(HERE), root=str(HERE.parents[1]), settings=SETTINGS.model_dump_json(), base=str(base), out=str(out)
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    for line in child.stdout:
        if line.strip() == "7":
            break
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not out.exists()
    with pytest.raises(ConfigError, match="stopped training"):
        sft.train(base, examples(20), out, SETTINGS.model_copy(update={"seed": 1}), {})
    (tmp_path / ".killed.training" / ".tmp-1-0-state.safetensors").write_bytes(b"left by a killed writer")
    done = []
    real = sft._Training._step
    monkeypatch.setattr(sft._Training, "_step", lambda self, step: done.append(step) or real(self, step))
    sft.train(base, examples(20), out, SETTINGS, {})
    assert done == [6, 7, 8, 9]
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    strip = [{k: v for k, v in row.items() if k != "wall_s"} for row in losses(out)]
    assert strip == [{k: v for k, v in row.items() if k != "wall_s"} for row in losses(whole)]
    assert not (tmp_path / ".killed.training").exists()


def test_every_epoch_sees_every_example_once() -> None:
    made = examples(10)
    steps = [[e.sample_id for e in sft.batch_of(made, step, SETTINGS)] for step in range(5)]
    seen = [name for step in steps for name in step]
    names = sorted(e.sample_id for e in made)
    assert sorted(seen[:10]) == sorted(seen[10:]) == names
    assert seen[:10] != seen[10:]
    assert [[e.sample_id for e in sft.batch_of(made[::-1], step, SETTINGS)] for step in range(5)] == steps


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [sft.learning_rate(step, 100, TrainSettings(learning_rate=1.0)) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates.index(max(rates)) in (9, 10)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)


def test_a_loss_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    base = write_llama(tmp_path / "base")
    with pytest.raises(StageError, match="learning_rate"):
        sft.train(base, examples(20), tmp_path / "out", SETTINGS.model_copy(update={"learning_rate": 1e30}), {})
    assert not (tmp_path / "out").exists()


def test_impossible_examples_are_named(tmp_path: Path) -> None:
    base, out = write_llama(tmp_path / "base"), tmp_path / "out"
    mask = np.ones(200, bool)
    for made, message in (
        ([Example("long", np.zeros(200, np.int32), mask)], "long has 200 tokens"),
        ([Example("odd", np.full(3, 5000, np.int32), mask[:3])], "token id 5000"),
        ([Example("idle", np.zeros(3, np.int32), ~mask[:3])], "idle has no trained token"),
        (examples(1) * 2, "twice"),
        ([], "no example"),
    ):
        with pytest.raises((InputError, ConfigError), match=message):
            sft.train(base, made, out, SETTINGS, {})


def test_the_result_loads_in_the_engine_and_in_transformers(tmp_path: Path) -> None:
    base = write_llama(tmp_path / "base", tied=False)
    settings = SETTINGS.model_copy(update={"dtype": "bfloat16"})
    out = sft.train(base, examples(8), tmp_path / "out", settings, {})
    peer = AutoModelForCausalLM.from_pretrained(out)
    assert peer.dtype == torch.bfloat16
    assert from_folder(out) == from_folder(base)
    Llama(*open_checkpoint(out), "fp32")
    torch.testing.assert_close(peer.lm_head.weight, weights(out)["lm_head.weight"], rtol=0, atol=0)


def test_the_small_real_model_is_exported_whole(tmp_path: Path) -> None:
    try:
        files.find(files.SMOLLM2)
    except ConfigError as error:
        pytest.skip(str(error))
    out = export_base("smollm2", tmp_path / "smol")
    ours, there = load_tokenizer("smollm2"), load_tokenizer(str(out))
    assert there.encode("Sum 123 of <|im_end|>, ok?") == ours.encode("Sum 123 of <|im_end|>, ok?")
    shape, read = open_checkpoint(out)
    real_shape, real = open_checkpoint(files.find("smollm2"))
    assert shape == real_shape
    for name in ("model.embed_tokens.weight", "model.layers.3.self_attn.q_proj.weight"):
        assert torch.equal(read(name), real(name))
    peer = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(peer.lm_head.weight, real("model.embed_tokens.weight"))
