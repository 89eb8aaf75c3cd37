"""Where the compiled kernels come from, and that torch serves without them."""

import logging
import os
import subprocess
import sys
from pathlib import Path

from small_models import write_llama

from agents import compiled
from agents.engine import weights
from agents.engine.attention import Span
from agents.engine.kernels import build
from agents.engine.models.llama import Llama

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=done)


LOAD = "import logging; logging.basicConfig(); from agents.engine.kernels.build import load; print(load() is None)"


def test_without_a_compiler_torch_serves_and_a_warning_says_why(tmp_path):
    ended = python(LOAD, CC="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))
    assert ended.stdout == "True\n"
    assert "no-such-compiler" in ended.stderr and "torch" in ended.stderr


def test_they_can_be_switched_off(caplog, monkeypatch):
    monkeypatch.setenv(build.SWITCH, "off")
    with caplog.at_level(logging.WARNING):
        assert build.load.__wrapped__() is None
    assert build.SWITCH in caplog.text


def test_another_processor_gets_files_of_its_own(tmp_path):
    (tmp_path / "a.c").write_text("int one(void) { return 1; }")
    programs = [compiled.Program("x", "x", tmp_path, ("-shared",), machine=machine) for machine in ("avx2", "avx512")]
    assert compiled.key(programs[0]) != compiled.key(programs[1])


def test_a_small_model_says_the_same_without_them(tmp_path, weights_file, monkeypatch):
    checkpoint = weights.open_checkpoint(write_llama(tmp_path, 3))
    said = []
    for switch in ("on", "off"):
        monkeypatch.setenv(build.SWITCH, switch)
        build.load.cache_clear()
        model = Llama(*checkpoint, "fp32", "fp32")
        said.append(
            (model.native, model.logits(model.hidden(list(range(40)), [Span([1, 0, 2], 0, 40)], model.new_cache(3))))
        )
    build.load.cache_clear()
    assert [native for native, _ in said] == [True, False]
    assert (said[0][1] - said[1][1]).abs().max() < 1e-3
