"""What the engine bench measures with: one thread, CPU time in turns, engines and requests.

Called by bench_engine.py and its parts, engine_*.py.
"""

import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping

import torch

from agents.engine import files, weights
from agents.engine.accounting import KVFormat
from agents.engine.base import GenerateRequest, GenerateResult, Sampling
from agents.engine.engine import EmbeddedEngine
from agents.engine.models.llama import Llama, Precision
from agents.engine.tokenizer import load_tokenizer

BAR = "the bar"


def one_thread() -> None:
    """One core for this process, its threads and its children; torch's products on one thread."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)


def cpu_s(action: Callable[[], object]) -> float:
    """CPU seconds of this process, all threads."""
    start = time.process_time()
    action()
    return time.process_time() - start


def alternate(rounds: int, actions: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """The median of what each gives (seconds); they take turns, so that all meet the same machine."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds):
        # Every other round backwards: whoever runs first meets the colder machine.
        for name in list(actions)[:: -1 if number % 2 else 1]:
            taken[name].append(actions[name]())
    return {name: statistics.median(values) for name, values in taken.items()}


def load_model(precision: Precision = "fp16", kv: KVFormat = "int8") -> Llama:
    """SmolLM2 as the engine runs it."""
    return Llama(*weights.open_checkpoint(files.find(files.SMOLLM2)), precision, kv)


def new_engine(model: Llama, *, max_batch: int = 32, kv_megabytes: int = 1024, context: int = 4096) -> EmbeddedEngine:
    """An engine over a loaded model, on one thread. Close it."""
    tokenizer = load_tokenizer(files.SMOLLM2)
    return EmbeddedEngine(
        "smollm2",
        "bench",
        model,
        tokenizer,
        max_batch=max_batch,
        context=context,
        threads=1,
        kv_megabytes=kv_megabytes,
    )


def random_ids(count: int, *seed: object) -> tuple[int, ...]:
    """A prompt of ordinary tokens, another one for each seed."""
    source = random.Random(repr(seed))
    return tuple(source.randrange(1000, 40_000) for _ in range(count))


def request(name: str, prompt: tuple[int, ...], tokens: int, grammar: str | None = None) -> GenerateRequest:
    """Greedy, and exactly so many tokens unless a grammar ends the reply."""
    sampling = Sampling(tokens, temperature=0.0, ignore_eos=grammar is None)
    return GenerateRequest((), name, sampling, grammar=grammar, prompt=prompt)


def ask(engine: EmbeddedEngine, requests: Iterable[GenerateRequest]) -> list[GenerateResult]:
    """All at once; their conversations are over afterwards."""
    asked = list(requests)

    async def together() -> list[GenerateResult]:
        return await asyncio.gather(*[engine.generate(one) for one in asked])

    results = asyncio.run(together())
    for one in asked:
        engine.release(one.conversation)
    return results


def tokens_of(results: Iterable[GenerateResult]) -> int:
    """Tokens sampled."""
    return sum(len(result.output_ids or ()) for result in results)
