"""Grammars: what may be sampled, what is forced, and that a whole tool call always parses."""

import json
import random

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.engine.grammar import Constraint, tool_call_grammar
from agents.engine.tokenizer import ChatTokenizer
from schemas.errors import EngineRefused

TOOLS = [
    {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "maxLength": 30}},
            "required": ["command"],
            "additionalProperties": False,
        },
    },
    {
        "name": "move",
        "parameters": {
            "type": "object",
            "properties": {"how": {"enum": ["copy", "link"]}, "times": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["how", "times"],
            "additionalProperties": False,
        },
    },
]
GRAMMAR = tool_call_grammar(TOOLS, "<tool_call>", "</tool_call>", max_thought=20)


def walk(tokenizer: ChatTokenizer, grammar: str, seed: int, limit: int = 400) -> list[int]:
    """A random path through a grammar, with the forced ids taken as the engine takes them."""
    constraint, rng, ids = Constraint(tokenizer.constraint, grammar), random.Random(seed), []
    while len(ids) < limit:
        allowed = [int(i) for i in (~constraint.forbidden(tokenizer.vocab_size)).nonzero()[0]]
        token = rng.choice(allowed)
        ids += [token, *constraint.forced(token)]
        if ids[-1] == tokenizer.eos_id:
            return ids
    pytest.fail("the grammar did not end")


@given(seed=st.integers(0, 100_000))
def test_any_path_is_one_valid_call(tokenizer: ChatTokenizer, seed):
    ids = walk(tokenizer, GRAMMAR, seed)
    assert ids[-1] == tokenizer.eos_id
    assert not set(ids[:-1]) & tokenizer.control_ids
    thought, _, call = tokenizer.decode(ids).partition("<tool_call>\n")
    assert len(thought) <= 20
    call, _, rest = call.partition("\n</tool_call>")
    assert rest == ""
    parsed = json.loads(call)
    assert list(parsed) == ["name", "arguments"]
    schema = next(t["parameters"] for t in TOOLS if t["name"] == parsed["name"])
    jsonschema.validate(parsed["arguments"], schema)


def test_forced_ids_are_what_the_tokenizer_would_write(tokenizer: ChatTokenizer):
    constraint = Constraint(tokenizer.constraint, 'start: "yes, of course"')
    first = tokenizer.encode("yes")[0]
    assert [first, *constraint.forced(first)] == [*tokenizer.encode("yes, of course"), tokenizer.eos_id]


def test_an_invalid_grammar_is_refused(tokenizer: ChatTokenizer):
    with pytest.raises(EngineRefused, match="grammar"):
        Constraint(tokenizer.constraint, "start: missing_rule")


def test_a_call_needs_a_tool():
    with pytest.raises(ValueError, match="at least one"):
        tool_call_grammar([], "<a>", "</a>")
