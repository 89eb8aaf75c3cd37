"""What the engine's design buys, in CPU time on one thread, as JSON lines. Run by `make bench`; about two minutes.

Every figure is ours against a peer that does the same work with the same weights: the engine with a feature left
unused, or transformers' `generate` in fp32. `ratio` is the peer's time over ours.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from agents.engine import files, weights
from agents.engine.base import ChatTurn, GenerateRequest, GenerateResult, Sampling
from agents.engine.engine import EmbeddedEngine
from agents.engine.models.llama import Llama
from agents.engine.tokenizer import load_tokenizer

NEW = 32
"""Tokens of each reply."""
WORDS = "The report lists every delivery of the week with date, place, weight and the name of the driver. "
PROSE = "start: /[a-z ]{2000,}/"
"""Keeps replies from ending early, so that both sides sample equally many tokens."""


def request(name: str, text: str, context: tuple[int, ...] = (), replies: tuple[str, ...] = ()) -> GenerateRequest:
    said = [ChatTurn("assistant", reply) for reply in replies]
    messages = (ChatTurn("user", "Hello."), *said, ChatTurn("user", text))
    return GenerateRequest(messages, name, Sampling(NEW, temperature=0), context, PROSE)


async def ask(engine: EmbeddedEngine, requests: list[GenerateRequest]) -> list[GenerateResult]:
    return await asyncio.gather(*[engine.generate(r) for r in requests])


def cpu(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def report(figure: str, ours: float, peer: str, theirs: float, unit: str, bar: float) -> None:
    ratio = theirs / ours
    line = {"figure": figure, "ours": round(ours, 3), "against": round(theirs, 3), "peer": peer}
    print(json.dumps(line | {"ratio": round(ratio, 2), "unit": unit, "bar": bar, "holds": ratio >= bar}), flush=True)


def turns(name: str, engine: Callable[[], EmbeddedEngine]) -> None:
    """Four turns of one conversation about 1,500 tokens long at its end, each asked of `engine()`."""
    context: tuple[int, ...] = ()
    replies: tuple[str, ...] = ()
    for turn in range(4):
        text = f"{name} part {turn}. " + WORDS * 16
        (reply,) = asyncio.run(ask(engine(), [request(name, text, context, replies)]))
        context += (reply.prompt_ids or ()) + (reply.output_ids or ())
        replies += (reply.text,)


def bench_conversation(model: Llama, engine: EmbeddedEngine) -> None:
    kept = cpu(lambda: turns("kept", lambda: engine))
    # A new engine over the same model has nothing kept.
    anew = cpu(lambda: turns("anew", lambda: new_engine(model)))
    report("4 turns, keys and values kept between them", kept, "prefill of every turn", anew, "CPU s", 1.5)


def bench_batch(engine: EmbeddedEngine) -> float:
    def requests(tag: str) -> list[GenerateRequest]:
        return [request(f"{tag}{i}", f"{tag} {i}. " + WORDS * 6) for i in range(32)]

    together = cpu(lambda: asyncio.run(ask(engine, requests("batch"))))
    few = requests("alone")[:6]
    alone = cpu(lambda: [asyncio.run(ask(engine, [r])) for r in few]) * 32 / len(few)
    report("32 requests at once", together, "one at a time", alone, "CPU s", 1.2)
    return together


def bench_shared(engine: EmbeddedEngine) -> None:
    head = "Rules. " + WORDS * 20

    def requests(tag: str, shared: bool) -> list[GenerateRequest]:
        return [request(f"{tag}{i}", head + f" Case {i}." if shared else f"{tag}{i} " + head) for i in range(8)]

    ours = cpu(lambda: asyncio.run(ask(engine, requests("same", shared=True))))
    theirs = cpu(lambda: asyncio.run(ask(engine, requests("other", shared=False))))
    report("8 requests that begin alike", ours, "8 that begin otherwise", theirs, "CPU s", 1.5)


def transformers_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape, read = weights.open_checkpoint(files.find(files.SMOLLM2))
    oracle = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=shape.context,
            rope_theta=shape.rope_theta,
            rms_norm_eps=shape.norm_eps,
            tie_word_embeddings=shape.tied,
        )
    ).eval()
    names = [name for name in oracle.state_dict() if name != "lm_head.weight"]
    oracle.load_state_dict({name: read(name) for name in names}, strict=False)
    return oracle


def bench_transformers(ours: float) -> None:
    oracle = transformers_model()
    tokenizer = load_tokenizer(files.SMOLLM2)
    prompts = [
        tokenizer.chat_prefix(
            [ChatTurn("user", "Hello."), ChatTurn("user", f"batch {i}. " + WORDS * 6)], first=True, closed=True
        )
        for i in range(32)
    ]
    longest = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.eos_id] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])

    def generate() -> None:
        oracle.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW, pad_token_id=2
        )

    theirs = cpu(generate)
    report(
        "32 requests of about 120 tokens, prompt and reply", ours, "transformers generate fp32", theirs, "CPU s", 1.5
    )


def bench_decode(engine: EmbeddedEngine) -> None:
    """CPU seconds per token of decoding many at once, against one at a time (prompts are cached by a first ask)."""
    cost = {}
    for size in (1, 8, 32):
        requests = [request(f"speed{size}.{i}", f"{size} {i} " + WORDS * 8) for i in range(size)]
        asyncio.run(ask(engine, [GenerateRequest(r.messages, r.conversation, Sampling(1)) for r in requests]))
        sampled = engine.sampled
        took = cpu(lambda asked=requests: asyncio.run(ask(engine, asked)))
        cost[size] = took / (engine.sampled - sampled)
    for size, bar in ((8, 2.5), (32, 4.0)):
        report(f"decode, {size} at once, context ~200", cost[size], "one at once", cost[1], "CPU s per token", bar)


def new_engine(model: Llama) -> EmbeddedEngine:
    return EmbeddedEngine("smollm2", "bench", model, load_tokenizer(files.SMOLLM2), max_batch=32, threads=1)


def main() -> None:
    torch.set_num_threads(1)
    model = Llama(*weights.open_checkpoint(files.find(files.SMOLLM2)), "fp16")
    engine = new_engine(model)
    asyncio.run(ask(engine, [request("warm", "up")]))
    bench_decode(engine)
    bench_conversation(model, engine)
    bench_shared(engine)
    together = bench_batch(engine)
    asyncio.run(engine.close())
    bench_transformers(together)


if __name__ == "__main__":
    main()
