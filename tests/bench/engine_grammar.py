"""Engine bench: replies bound by a grammar against free ones of the same lengths, and whether they are valid."""

import asyncio
import json
import statistics
from collections.abc import Sequence
from functools import partial

import jsonschema
from engine_measure import ask, cpu_s, new_engine, random_ids, request
from lines import say

from agents.engine.base import ChatTurn, GenerateRequest, GenerateResult, Sampling
from agents.engine.engine import EmbeddedEngine
from agents.engine.grammar import tool_call_grammar
from agents.engine.models.llama import Llama

AT_ONCE, PROMPT, LETTERS = 32, 48, 48
BUDGET = 224
PROSE = "start: /[a-z ]{2000,}/"
"""Forces nothing and never ends: as many steps and tokens as without it."""
TAGS = ("<tool_call>", "</tool_call>")
TOOLS = (
    {
        "name": "record",
        "parameters": {
            "type": "object",
            "properties": {
                "customer": {"type": "string", "maxLength": 24},
                "object": {"enum": ["clock", "watch", "lamp"]},
                "hours": {"type": "integer", "minimum": 0, "maximum": 999},
                "parts": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 3},
                "urgent": {"type": "boolean"},
            },
            "required": ["customer", "object", "hours", "parts", "urgent"],
            "additionalProperties": False,
        },
    },
    {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 99999}},
            "required": ["number"],
            "additionalProperties": False,
        },
    },
)
QUESTION = "A customer brings a watch that stopped. Record the repair."


def constrained(model: Llama, rounds: int) -> None:
    """CPU of 32 bound replies over free ones, pairwise, and validity of 64 tool calls."""
    engine = new_engine(model)
    prose = statistics.median(_over_prose(engine, number) for number in range(rounds))
    replies: list[GenerateResult] = []
    calls = statistics.median(_over_calls(engine, number, replies) for number in range(max(rounds, 2)))
    asyncio.run(engine.close())
    free = "free decoding, as many tokens, 32 at once"
    unit = "CPU s over theirs"
    say("constrained_prose", prose, free, 1.0, f"{unit}: nothing forced", 1.1)
    say("constrained_tool_call", calls, free, 1.0, f"{unit}: a tool call, forced tokens too", 1.1)
    longest = max(len(reply.output_ids or ()) for reply in replies)
    unit = f"valid tool calls within {BUDGET} tokens; the longest took {longest}"
    say("constrained_valid", sum(map(_valid, replies)), "all", len(replies), unit, at_least=True)


def _over_prose(engine: EmbeddedEngine, number: int) -> float:
    """Bound over free, of which now the one, now the other comes first."""
    grammars = (PROSE, None) if number % 2 else (None, PROSE)
    cost = {bool(g): cpu_s(partial(ask, engine, _prose(2 * number + i, g))) for i, g in enumerate(grammars)}
    return cost[True] / cost[False]


def _over_calls(engine: EmbeddedEngine, number: int, replies: list[GenerateResult]) -> float:
    """Adds the bound replies to `replies`."""
    calls = [_call(number, i) for i in range(AT_ONCE)]
    bound = cpu_s(lambda: replies.extend(ask(engine, calls)))
    lengths = [len(reply.output_ids or ()) for reply in replies[-AT_ONCE:]]
    return bound / cpu_s(lambda: ask(engine, _free(calls, lengths)))


def _prose(number: int, grammar: str | None) -> list[GenerateRequest]:
    prompts = [random_ids(PROMPT, "prose", number, i) for i in range(AT_ONCE)]
    return [request(f"prose {number} {i}", prompt, LETTERS, grammar) for i, prompt in enumerate(prompts)]


def _call(number: int, i: int) -> GenerateRequest:
    messages = (ChatTurn("user", f"{QUESTION} Its number is {100 * number + i}."),)
    sampling = Sampling(BUDGET, temperature=0.8, seed=100 * number + i)
    return GenerateRequest(messages, f"call {number} {i}", sampling, grammar=tool_call_grammar(TOOLS, *TAGS, 60))


def _free(calls: Sequence[GenerateRequest], lengths: Sequence[int]) -> list[GenerateRequest]:
    """Prompts as long, and none in the prefix cache; free, of these lengths."""
    return [
        GenerateRequest(
            (ChatTurn("user", call.messages[0].content.replace("watch", "clock")),),
            f"free {call.conversation}",
            Sampling(length, temperature=0.8, seed=call.sampling.seed, ignore_eos=True),
        )
        for call, length in zip(calls, lengths, strict=True)
    ]


def _valid(reply: GenerateResult) -> bool:
    """Whether it ends by itself with one call of a tool whose arguments fit the schema."""
    before, opened, rest = reply.text.partition(TAGS[0])
    body, closed, after = rest.partition(TAGS[1])
    if reply.finish_reason != "stop" or not (opened and closed) or after.strip() or len(before) > 60:
        return False
    try:
        call = json.loads(body)
        tool = next(tool for tool in TOOLS if tool["name"] == call["name"])
        jsonschema.validate(call["arguments"], tool["parameters"])
    except (ValueError, KeyError, StopIteration, jsonschema.ValidationError):
        return False
    return True
