"""Engine bench: decode beside transformers and llama.cpp, 32 at once beside one, turns kept, int8 weights beside fp16.

The whole engine is measured, `generate` calls and all: the prompts are in its prefix cache, so that only their last
token is left and every step is one token of every sequence. Of the peers only the bare steps count.
"""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from engine_measure import alternate, ask, cpu_s, load_model, new_engine, random_ids, request
from engine_peers import LlamaProcess, PeerFailed, Transformers, llama, llamas
from lines import say, skip

from agents.engine.base import ChatTurn, GenerateRequest, Sampling
from agents.engine.engine import EmbeddedEngine
from agents.engine.models.llama import Llama
from schemas.errors import ConfigError

LENGTH = 193
"""Tokens in front of the replies: twelve blocks that are found again, and one token."""
STEPS = {1: 24, 8: 12, 32: 8, 64: 4}
"""Decode steps of a measurement, by sequences at once."""
AGAINST_TRANSFORMERS = {1: 1.8, 8: 1.8, 32: 1.5, 64: None}
AGAINST_LLAMA = {1: None, 8: 1.0, 32: 1.0, 64: None}


def decode(model: Llama, rounds: int) -> None:
    """Tokens per CPU second at 1, 8, 32 and 64 sequences."""
    engine = new_engine(model, max_batch=max(STEPS))
    transformers = Transformers(LENGTH)
    with contextlib.ExitStack() as stack:
        builds = _start(stack)
        rates = {n: _decode_at(engine, transformers, builds, n, rounds) for n in STEPS}
    asyncio.run(engine.close())
    unit = "tokens per CPU s"
    say("decode_32_together", rates[32]["ours"], "one at a time", rates[1]["ours"], unit, None, at_least=True)
    for n, found in rates.items():
        name = transformers.name
        say(f"decode_{n}_transformers", found["ours"], name, found[name], unit, AGAINST_TRANSFORMERS[n], at_least=True)
        peers = [name for name in found if "llama" in name]
        if not peers:
            skip(f"decode_{n}_llama", "no build of llama.cpp is installed, or none ran")
        for place, name in enumerate(sorted(peers, key=lambda name: -found[name])):
            bar = None if place else AGAINST_LLAMA[n]  # the stronger build counts
            figure = f"decode_{n}_llama" + ("_weaker" if place else "")
            say(figure, found["ours"], name, found[name], unit, bar, at_least=True)


def _start(stack: contextlib.ExitStack) -> dict[int, list[LlamaProcess]]:
    """The builds of llama.cpp that measure at each size.

    ik_llama-cpp-python has to fill every sequence by prefill, which takes a minute at 32 and four at 64, where it
    is far behind anyway: 8 is enough when the other build is there, 32 otherwise.
    """
    modules = llamas()
    builds: dict[int, list[LlamaProcess]] = {n: [] for n in STEPS}
    for module in modules:
        most = 64 if module == "llama_cpp" else 8 if len(modules) > 1 else 32
        try:
            build = stack.enter_context(llama(module, LENGTH, most))
        except PeerFailed as error:
            skip(f"decode_{module}", str(error))
            continue
        for n in STEPS:
            if n <= most:
                builds[n].append(build)
    return builds


def _decode_at(
    engine: EmbeddedEngine,
    transformers: Transformers,
    builds: dict[int, list[LlamaProcess]],
    n: int,
    rounds: int,
) -> dict[str, float]:
    """Tokens per CPU second of `n` sequences, by engine."""
    steps, ours = STEPS[n], engine_decode(engine, n)
    actions = {"ours": partial(ours, steps), transformers.name: partial(transformers.decode, n, steps)}
    for build in builds[n]:
        try:
            build.decode(n, 1)
        except PeerFailed as error:
            skip(f"decode_{n}_llama", str(error))
            continue
        actions[build.name] = partial(build.decode, n, steps)
    seconds = alternate(rounds, actions)
    return {name: n * steps / taken for name, taken in seconds.items()}


def engine_decode(engine: EmbeddedEngine, n: int) -> Callable[[int], float]:
    """CPU seconds of so many steps of `n` sequences whose prompts are in the prefix cache."""
    prompts = [random_ids(LENGTH, "decode", n, i) for i in range(n)]
    ask(engine, [request(f"first {n} {i}", prompt, 1) for i, prompt in enumerate(prompts)])

    def run(steps: int) -> float:
        requests = [request(f"again {n} {i}", prompt, steps) for i, prompt in enumerate(prompts)]
        return cpu_s(lambda: ask(engine, requests))

    run(1)
    return run


def int8_weights(model: Llama, rounds: int) -> None:
    """What int8 products buy at 32 sequences."""
    try:
        int8 = load_model("int8")
    except (ConfigError, ImportError) as error:
        skip("decode_32_int8_weights", str(error))
        return
    engines = {"int8": new_engine(int8), "fp16": new_engine(model)}
    runs = {name: engine_decode(engine, 32) for name, engine in engines.items()}
    steps = STEPS[32]
    seconds = alternate(rounds, {name: partial(run, steps) for name, run in runs.items()})
    for engine in engines.values():
        asyncio.run(engine.close())
    rate = {name: 32 * steps / taken for name, taken in seconds.items()}
    say("decode_32_int8_weights", rate["int8"], "fp16 weights", rate["fp16"], "tokens per CPU s", None, at_least=True)


def turns(model: Llama, rounds: int) -> None:
    """Four turns of a conversation of 1,200 tokens, in an engine that keeps turns and in new ones that have nothing."""
    kept = new_engine(model, kv_megabytes=128)
    number = iter(range(1000))

    def anew() -> float:
        return cpu_s(lambda: _converse(lambda: new_engine(model, kv_megabytes=128), f"anew {next(number)}", close=True))

    def again() -> float:
        return cpu_s(lambda: _converse(lambda: kept, f"kept {next(number)}", close=False))

    seconds = alternate(rounds, {"kept": again, "anew": anew})
    asyncio.run(kept.close())
    say(
        "turns_kept",
        1 / seconds["kept"],
        "prefill of every turn",
        1 / seconds["anew"],
        "conversations per CPU s",
        1.5,
        at_least=True,
    )


def _converse(engine: Callable[[], EmbeddedEngine], name: str, *, close: bool) -> None:
    context: tuple[int, ...] = ()
    messages: tuple[ChatTurn, ...] = ()
    words = "The report lists every delivery of the week with date, place, weight and driver. " * 16
    for turn in range(4):
        messages += (ChatTurn("user", f"{name} part {turn}. {words}"),)
        at = engine()
        asked = GenerateRequest(messages, name, Sampling(16, temperature=0.0, ignore_eos=True), context)
        reply = asyncio.run(at.generate(asked))
        context += (reply.prompt_ids or ()) + (reply.output_ids or ())
        messages += (ChatTurn("assistant", reply.text),)
        if close:
            asyncio.run(at.close())
