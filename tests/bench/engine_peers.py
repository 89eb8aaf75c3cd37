"""Engine bench: transformers in fp32 and builds of llama.cpp, with the same SmolLM2 weights, each at its best.

`decode` of each gives the CPU seconds of greedy steps of so many sequences that already have `length` tokens.
"""

import contextlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from agents.engine import files, weights

SCRIPT = Path(__file__).with_name("engine_llama.py")
LLAMAS = ("llama_cpp", "ik_llama_cpp")


class PeerFailed(Exception):
    """A peer's process ended."""


def transformers_model() -> Any:
    """LlamaForCausalLM with our weights."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    shape, read = weights.open_checkpoint(files.find(files.SMOLLM2))
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=shape.context,
            rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
            rms_norm_eps=shape.norm_eps,
            tie_word_embeddings=shape.tied,
        )
    ).eval()
    names = [name for name in model.state_dict() if name != "lm_head.weight"]
    model.load_state_dict({name: read(name) for name in names}, strict=False)
    return model


class Transformers:
    """Its forward pass over a DynamicCache: less than `generate` does around it."""

    name = "transformers fp32, DynamicCache"

    def __init__(self, length: int) -> None:
        self.model = transformers_model()
        self._length, self._sequences = length, 0
        self._cache: Any = None

    @torch.inference_mode()
    def decode(self, sequences: int, steps: int) -> float:
        if self._sequences != sequences:
            self._cache = self._filled(sequences)
            self._sequences = sequences
        start = time.process_time()
        self._steps(torch.full((sequences, 1), 1000), steps)
        took = time.process_time() - start
        self._cache.crop(-steps)
        return took

    def _filled(self, sequences: int) -> Any:
        """One sequence's keys and values for all: dense attention costs the same whatever they are."""
        ids = torch.randint(1000, 40_000, (1, self._length), generator=torch.Generator().manual_seed(1))
        cache = self.model(ids, use_cache=True).past_key_values
        cache.batch_repeat_interleave(sequences)
        return cache

    def _steps(self, token: torch.Tensor, steps: int) -> None:
        for _ in range(steps):
            token = self.model(token, cache=self._cache, use_cache=True).logits.argmax(-1)

    @torch.inference_mode()
    def static_batch(self, prompt: int, sequences: int, steps: int) -> float:
        """CPU seconds of so many sequences that start and end together, prompt included."""
        ids = torch.randint(1000, 40_000, (sequences, prompt), generator=torch.Generator().manual_seed(2))
        start = time.process_time()
        out = self.model(ids, use_cache=True, logits_to_keep=1)
        self._cache, self._sequences = out.past_key_values, 0
        self._steps(out.logits.argmax(-1), steps - 1)
        return time.process_time() - start


class LlamaProcess:
    """A build of llama.cpp in a child process, on the same core. PeerFailed when that ends early."""

    def __init__(self, process: subprocess.Popen[str], module: str) -> None:
        self._process, self._module = process, module
        self.name = f"{self._answer()['name']}, Q4_1"

    def decode(self, sequences: int, steps: int) -> float:
        if self._process.stdin is None:
            raise PeerFailed(f"{self._module} has no stdin")
        try:
            self._process.stdin.write(f"{sequences} {steps}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(f"{self._module} ended with code {self._process.wait()}") from None
        return float(self._answer()["cpu_s"])

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise PeerFailed(f"{self._module} ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def llamas() -> list[str]:
    """Modules of the builds that are installed."""
    return [module for module in LLAMAS if importlib.util.find_spec(module) is not None]


@contextlib.contextmanager
def llama(module: str, length: int, most: int) -> Iterator[LlamaProcess]:
    """One build, loaded for up to `most` sequences of `length` tokens. PeerFailed when it does not come up."""
    shape, _ = weights.open_checkpoint(files.find(files.SMOLLM2))
    arguments = [module, files.find(files.SMOLLM2), length, most, shape.vocab_size]
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield LlamaProcess(process, module)
        finally:
            process.kill()
