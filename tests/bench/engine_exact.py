"""Engine bench: pause and continue, and a soak of 2,000 requests with cancels and pauses."""

import asyncio
import gc
import itertools
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine_measure import BAR, new_engine, random_ids
from lines import say

from agents.engine import files, weights
from agents.engine.base import GenerateRequest, GenerateResult, Sampling
from agents.engine.engine import EmbeddedEngine
from agents.engine.models.llama import Llama
from agents.engine.paused import Paused, load_paused
from schemas.errors import EngineRefused, GenerationPaused

PROMPT, REPLY, STOP_AT = 600, 48, 20


def pause(model: Llama, rounds: int) -> None:
    """Stop at a token, save, load and continue in another engine: the same tokens and logprobs, and what it costs."""
    first, second = new_engine(model, kv_megabytes=128), new_engine(model, kv_megabytes=128)
    same, load_ms, resume_ms, prefill_ms = 0, [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2 * rounds):
            sampling = Sampling(REPLY, temperature=(0.0, 0.8)[number % 2], seed=number, ignore_eos=True)
            asked = GenerateRequest((), f"pause {number}", sampling, prompt=random_ids(PROMPT, "pause", number))
            whole, costs = _timed(first, asked, None)
            prefill_ms.append(_before_first_ms(costs))
            asyncio.run(_pause_at(first, replace(asked, conversation="stopped"), STOP_AT)).save(Path(folder, "state"))
            start = time.process_time()
            state = load_paused(Path(folder, "state"))
            load_ms.append((time.process_time() - start) * 1e3)
            continued, costs = _timed(second, None, state)
            resume_ms.append(_before_first_ms(costs))
            same += (continued.output_ids, continued.logprobs) == (whole.output_ids, whole.logprobs)
    asyncio.run(first.close())
    asyncio.run(second.close())
    count = 2 * rounds
    say(
        "pause_same",
        same,
        "never paused: equal tokens and logprobs, half greedy, half sampled",
        count,
        "requests",
        at_least=True,
    )
    unit = f"CPU ms, {PROMPT + STOP_AT} tokens, beyond a step of one token"
    say("pause_resume", statistics.median(resume_ms), BAR, 5.0, unit)
    median = statistics.median(prefill_ms)
    say("pause_resume_prefill", statistics.median(resume_ms), "prefill instead", median, unit, None)
    say("pause_load", statistics.median(load_ms), "none", 0.0, "CPU ms, reading the file", None)


def _timed(
    engine: EmbeddedEngine, asked: GenerateRequest | None, state: Paused | None
) -> tuple[GenerateResult, list[float]]:
    """A reply, and the CPU time at its start and at each of its chunks."""
    times: list[float] = []

    async def run() -> GenerateResult:
        times.append(time.process_time())

        def chunk(_: object) -> None:
            times.append(time.process_time())

        if state is not None:
            return await engine.continue_paused(state, chunk)
        if asked is None:
            raise ValueError("neither a request nor a state")
        return await engine.generate(asked, chunk)

    return asyncio.run(run()), times


def _before_first_ms(times: list[float]) -> float:
    """What came before the first chunk's own step."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return (gaps[0] - statistics.median(gaps[1:])) * 1e3


async def _pause_at(engine: EmbeddedEngine, asked: GenerateRequest, tokens: int) -> Paused:
    """The state of a request that was paused when so many chunks had come."""
    reached, seen = asyncio.Event(), 0

    def chunk(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == tokens:
            reached.set()

    running = asyncio.ensure_future(engine.generate(asked, chunk))
    await reached.wait()
    state = await engine.pause(asked.conversation)
    try:
        await running
    except GenerationPaused:
        return state
    raise RuntimeError("a paused request came to an end")


@dataclass
class Tally:
    """How the soak's requests ended, and the resident memory at some of them."""

    done: int = 0
    cancelled: int = 0
    paused: int = 0
    resident: list[float] = field(default_factory=list)


def soak(requests: int) -> None:
    """Short requests, 40 in flight, of which some are cancelled and some paused; then nothing may be held.

    On the first four layers of SmolLM2 (more would only take longer) with memory for few more than run, so that blocks
    are evicted and requests give way.
    """
    shape, read = weights.open_checkpoint(files.find(files.SMOLLM2))
    model = Llama(replace(shape, layers=4, windows=shape.windows[:4]), read, "fp16")
    engine = new_engine(model, max_batch=24, kv_megabytes=1, context=256)
    tally = Tally()
    asyncio.run(_soak(engine, requests, tally))
    asyncio.run(engine.close())  # after what was posted last is done
    for worker in engine._workers:
        worker.scheduler.audit()
    ends = f"{tally.done} done, {tally.cancelled} cancelled, {tally.paused} paused"
    counts = engine.metrics()
    ends += f"; {counts.preempted + counts.parked} gave way, {counts.evicted} blocks evicted"
    say("soak_blocks_held", counts.blocks_used, f"audited; {ends}", 0.0, "blocks", 0.0)
    quarter = len(tally.resident) // 4
    growth = statistics.median(tally.resident[-quarter:]) - statistics.median(tally.resident[quarter : 2 * quarter])
    say("soak_memory", growth, "between the second and the last quarter", 0.0, "MB more", 20.0)


async def _soak(engine: EmbeddedEngine, requests: int, tally: Tally) -> None:
    gate = asyncio.Semaphore(40)

    async def one(number: int) -> None:
        async with gate:
            await _live(engine, number, tally)
        if number % 25 == 0:
            gc.collect()
            tally.resident.append(_resident_mb())

    await asyncio.gather(*map(one, range(requests)))


async def _live(engine: EmbeddedEngine, number: int, tally: Tally) -> None:
    """One request's life. Three in four begin like others."""
    source = random.Random(f"soak {number}")
    begin = random_ids(source.choice((16, 40, 64)), "soak", source.randrange(6)) if source.random() < 0.75 else ()
    prompt = begin + random_ids(source.randint(1, 24), "own", number)
    name, tokens = f"soak {number}", source.randint(1, 24)
    sampling = Sampling(tokens, temperature=source.choice((0.0, 0.8)), seed=number, ignore_eos=True)
    asked = GenerateRequest((), name, sampling, prompt=prompt, priority=source.choice((0, 0, 0, 1)))
    running = asyncio.ensure_future(engine.generate(asked))
    fate = source.random()
    try:
        if fate < 0.3:
            await asyncio.sleep(source.random() * 0.2)
        if fate < 0.15:
            running.cancel()
        elif fate < 0.3:
            await _pause_some(engine, name, running, source.random() < 0.7, tally)
            return
        result = await running
        if len(result.output_ids or ()) != tokens:
            raise RuntimeError(f"{name} got {len(result.output_ids or ())} tokens, not {tokens}")
        tally.done += 1
    except asyncio.CancelledError:
        tally.cancelled += 1
    finally:
        engine.release(name)


async def _pause_some(
    engine: EmbeddedEngine, name: str, running: "asyncio.Future[GenerateResult]", goes_on: bool, tally: Tally
) -> None:
    """Pause, and in most cases continue."""
    try:
        state = await engine.pause(name)
    except EngineRefused:  # it had ended
        await running
        tally.done += 1
        return
    try:
        await running
    except GenerationPaused:
        tally.paused += 1
    if goes_on:
        await engine.continue_paused(state)


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
