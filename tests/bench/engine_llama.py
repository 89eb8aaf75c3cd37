"""Engine bench: one llama.cpp build as a process of its own, for it may abort. Started by engine_peers.py.

`python engine_llama.py MODULE FILE CONTEXT MOST VOCABULARY` loads the .gguf FILE for up to MOST sequences of CONTEXT
tokens and prints a JSON line that names the build. Each line "SEQUENCES STEPS" on stdin is answered by one with the CPU
seconds of so many greedy decode steps from CONTEXT tokens on. Ends when stdin does.

MODULE is llama_cpp (each sequence has keys and values of its own; flash attention) or ik_llama_cpp (0.1.5: one buffer
that every sequence's attention looks through; its flash attention aborts with several sequences).
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np

STEPS = 32
"""Most decode steps of a measurement."""


class Build(Protocol):
    """What differs between the builds."""

    api: Any
    context: Any

    def copy(self, target: int) -> bool:
        """Give sequence `target` keys and values of its own, those of sequence 0. False: cannot."""
        ...

    def cut(self, sequence: int, length: int) -> None:
        """Forget what follows the first `length` tokens."""
        ...


class LlamaCpp:
    """llama-cpp-python."""

    def __init__(self, path: str, room: int, most: int) -> None:
        import llama_cpp

        api = llama_cpp
        self.api: Any = api
        api.llama_backend_init()
        # Quiet, so that what is on stdout and stderr is ours or an error.
        self._log = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self._log, ctypes.c_void_p(0))
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = room * most, most, False
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 1
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
        model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        self.context = api.llama_init_from_model(model, params)
        self._memory = api.llama_get_memory(self.context)

    def copy(self, target: int) -> bool:
        self.api.llama_memory_seq_cp(self._memory, 0, target, -1, -1)
        return True

    def cut(self, sequence: int, length: int) -> None:
        self.api.llama_memory_seq_rm(self._memory, sequence, length, -1)


class IkLlama:
    """ik_llama-cpp-python. Its Python layer has no calls for sequences: they are taken from its library."""

    def __init__(self, path: str, room: int, most: int) -> None:
        from ik_llama_cpp import _ctypes_api

        api = _ctypes_api
        self.api: Any = api
        api.llama_backend_init()
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.flash_attn = room * most, most, False
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 1
        model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        self.context = api.llama_init_from_model(model, params)
        self._remove = api._lib.llama_kv_cache_seq_rm
        self._remove.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
        self._remove.restype = ctypes.c_bool

    def copy(self, target: int) -> bool:
        # llama_kv_cache_seq_cp lets sequences share cells, so there would be less to attend to than they should have;
        # llama_state_seq_get_data of 0.1.5 writes no keys.
        return False

    def cut(self, sequence: int, length: int) -> None:
        self._remove(self.context, sequence, length, -1)


class Decoder:
    """Sequences of `length` tokens in one build."""

    def __init__(self, build: Build, length: int, vocabulary: int) -> None:
        self._build, self._length, self._vocabulary = build, length, vocabulary
        self._batch = build.api.llama_batch_init(512, 0, 1)
        self._tokens = np.random.default_rng(1).integers(1000, 40_000, length).tolist()
        self._filled = 0

    def seconds(self, sequences: int, steps: int) -> float:
        """CPU seconds of `steps` greedy steps of so many sequences."""
        while self._filled < sequences:
            self._fill(self._filled)
            self._filled += 1
        tokens = [1000 + 7 * sequence for sequence in range(sequences)]
        start = time.process_time()
        for step in range(steps):
            self._decode([(token, self._length + step, i, True) for i, token in enumerate(tokens)])
            tokens = [self._best(i) for i in range(sequences)]
        took = time.process_time() - start
        for sequence in range(sequences):
            self._build.cut(sequence, self._length)
        return took

    def _fill(self, sequence: int) -> None:
        if sequence == 0 or not self._build.copy(sequence):
            self._decode([(token, i, sequence, i + 1 == self._length) for i, token in enumerate(self._tokens)])

    def _best(self, row: int) -> int:
        logits = self._build.api.llama_get_logits_ith(self._build.context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if code := self._build.api.llama_decode(self._build.context, batch):
            raise RuntimeError(f"llama_decode gave {code}")


BUILDS: dict[str, tuple[str, Callable[[str, int, int], Build]]] = {
    "llama_cpp": ("llama-cpp-python", LlamaCpp),
    "ik_llama_cpp": ("ik-llama-cpp-python", IkLlama),
}


def main() -> None:
    module, path = sys.argv[1:3]
    length, most, vocabulary = map(int, sys.argv[3:6])
    package, build = BUILDS[module]
    decoder = Decoder(build(path, -(-(length + STEPS) // 256) * 256, most), length, vocabulary)
    print(json.dumps({"name": f"{package} {version(package)}"}), flush=True)
    for line in sys.stdin:
        sequences, steps = map(int, line.split())
        print(json.dumps({"cpu_s": decoder.seconds(sequences, steps)}), flush=True)


if __name__ == "__main__":
    main()
