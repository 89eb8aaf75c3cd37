"""Engine bench: 32 agents with one long prefix, and replies of very different lengths."""

import asyncio
import itertools
import random
from functools import partial
from typing import Any

import torch
from engine_measure import BAR, alternate, ask, cpu_s, load_model, new_engine, random_ids, request, tokens_of
from engine_peers import Transformers
from lines import say

from agents.engine.attention import Span, TorchKernels
from agents.engine.base import GenerateRequest, GenerateResult
from agents.engine.engine import EmbeddedEngine
from agents.engine.kernels.native import NativeKernels
from agents.engine.models.llama import Cache, Llama
from agents.engine.sequence import BLOCK

AGENTS, SHARED, OWN, REPLY = 32, 600, 30, 80
REQUESTS, SHORTEST, LONGEST, PROMPT = 64, 20, 400, 32
PART = 4
"""transformers' replies are that much shorter, or it would take five minutes."""


def shared_prefix(model: Llama, rounds: int) -> None:
    """CPU, memory and logits of agents that begin alike, against agents that begin otherwise."""
    engine = new_engine(model)
    numbers, peaks = itertools.count(), {"shared": 0, "apart": 0}

    def run(kind: str) -> float:
        number = next(numbers)
        requests = []
        for i in range(AGENTS):
            begin = random_ids(SHARED, "begin", number, i if kind == "apart" else None)
            requests.append(request(f"{number} {i}", begin + random_ids(OWN, "own", number, i), REPLY))
        taken = cpu_s(lambda: peaks.__setitem__(kind, asyncio.run(_peak_blocks(engine, requests))))
        for one in requests:
            engine.release(one.conversation)
        return taken

    seconds = alternate(rounds, {kind: partial(run, kind) for kind in peaks})
    asyncio.run(engine.close())
    rate = {kind: AGENTS / taken for kind, taken in seconds.items()}
    peer = "the same, no two begin alike"
    say("shared_prefix_cpu", rate["shared"], peer, rate["apart"], "agents per CPU s", 3.5, at_least=True)
    mib = {kind: blocks * BLOCK * model.kv_bytes_per_token / 2**20 for kind, blocks in peaks.items()}
    say("shared_prefix_kv", mib["shared"], peer, mib["apart"], "MiB of keys and values at most", 1.0)
    for figure, other in (("native", model), ("torch", _in_torch())):
        difference = shared_difference(other, AGENTS if other is model else 4)
        say(f"shared_prefix_logits_{figure}", difference * 1e3, BAR, 1.0, "1e-3, largest difference to alone")


async def _peak_blocks(engine: EmbeddedEngine, requests: list[GenerateRequest]) -> int:
    """Generate all at once. The most blocks in use, as seen when the last request's chunks came."""
    seen = [0]

    def look(_: object) -> None:
        seen.append(engine.metrics().blocks_used)

    async def one(asked: GenerateRequest) -> GenerateResult:
        return await engine.generate(asked, look if asked is requests[-1] else None)

    await asyncio.gather(*map(one, requests))
    return max(seen)


def _in_torch() -> Llama:
    """The model with the torch kernels, the reference of the C ones, and exact keys and values."""
    model = load_model("fp32", "fp32")
    return without_c(model)


def without_c(model: Llama) -> Llama:
    """Let torch do what the C kernels do."""
    if isinstance(model._kernels, NativeKernels):
        kept: Any = model._kernels._kept
        model._kernels = TorchKernels(*kept)
    return model


def shared_difference(model: Llama, agents: int, steps: int = 3) -> float:
    """The largest difference between logits of agents in one batch over one stored prefix, and of each alone."""
    blocks = -(-(SHARED + OWN + steps) // BLOCK)
    prefix = list(random_ids(SHARED, "prefix"))
    own = [list(random_ids(OWN + steps, "own", i)) for i in range(agents)]
    common = SHARED // BLOCK
    cache = model.new_cache(common + agents * (blocks - common))
    first = list(range(common))
    _run(model, cache, prefix[: common * BLOCK], [Span(first, 0, common * BLOCK)])
    tables = [
        first + list(range(common + i * (blocks - common), common + (i + 1) * (blocks - common))) for i in range(agents)
    ]
    rest = prefix[common * BLOCK :]
    for table, ids in zip(tables, own, strict=True):
        _run(model, cache, rest + ids[:OWN], [Span(table, common * BLOCK, len(rest) + OWN)])
    together = [
        _run(model, cache, [ids[OWN + step] for ids in own], [Span(table, SHARED + OWN + step, 1) for table in tables])
        for step in range(steps)
    ]
    worst = 0.0
    for i, ids in enumerate(own[:4]):
        alone_cache, table = model.new_cache(blocks), list(range(blocks))
        _run(model, alone_cache, prefix + ids[:OWN], [Span(table, 0, SHARED + OWN)])
        for step in range(steps):
            alone = _run(model, alone_cache, [ids[OWN + step]], [Span(table, SHARED + OWN + step, 1)])
            worst = max(worst, float((together[step][i] - alone[0]).abs().max()))
    return worst


def _run(model: Llama, cache: Cache, ids: list[int], spans: list[Span]) -> torch.Tensor:
    """Logits of the last row of each span."""
    hidden = model.hidden(ids, spans, cache)
    ends = list(itertools.accumulate(span.count for span in spans))
    return model.logits(hidden[[end - 1 for end in ends]])


def mixed_lengths(model: Llama, rounds: int) -> None:
    """64 replies of 20 to 400 tokens against 64 of their mean, 32 at once; transformers in static batches beside it."""
    engine = new_engine(model)
    spread = [round(SHORTEST + (LONGEST - SHORTEST) * i / (REQUESTS - 1)) for i in range(REQUESTS)]
    random.Random(4).shuffle(spread)
    lengths = {"mixed": spread, "uniform": [sum(spread) // REQUESTS] * REQUESTS}
    numbers = itertools.count()

    def run(kind: str) -> float:
        number = next(numbers)
        prompts = [random_ids(PROMPT, "mixed", number, i) for i in range(REQUESTS)]
        requests = [request(f"{number} {i}", prompts[i], n) for i, n in enumerate(lengths[kind])]
        return cpu_s(lambda: _exactly(engine, requests, sum(lengths[kind])))

    seconds = alternate(rounds, {kind: partial(run, kind) for kind in lengths})
    asyncio.run(engine.close())
    rate = {kind: sum(lengths[kind]) / taken for kind, taken in seconds.items()}
    unit = "tokens per CPU s"
    say(
        "mixed_lengths",
        rate["mixed"],
        "as many tokens, all replies equally long",
        rate["uniform"],
        unit,
        0.9,
        at_least=True,
    )
    batch = [max(1, n // PART) for n in spread[:32]]
    taken = Transformers(PROMPT).static_batch(PROMPT, len(batch), max(batch))
    peer = f"transformers fp32, a static batch of 32, replies 1/{PART} as long"
    say("mixed_lengths_static", rate["mixed"], peer, sum(batch) / taken, unit, None, at_least=True)


def _exactly(engine: EmbeddedEngine, requests: list[GenerateRequest], tokens: int) -> None:
    if (found := tokens_of(ask(engine, requests))) != tokens:
        raise RuntimeError(f"{found} tokens were sampled, not {tokens}")
