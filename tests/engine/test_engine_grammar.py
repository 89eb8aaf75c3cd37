"""Grammars: what may be sampled, what is forced, that whole replies always parse, and that budgets are kept."""

import json
import math
import random
import re

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.engine.base import Sampling
from agents.engine.grammar import Constraint, grammar_of, tool_call_grammar
from agents.engine.sampler import sample
from agents.engine.sequence import Sequence
from agents.engine.tokenizer import ChatTokenizer
from schemas.errors import EngineRefused


def record(**properties) -> dict:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
TOOLS = [
    {"name": "bash", "parameters": record(command={"type": "string", "maxLength": 30})},
    {
        "name": "move",
        "parameters": record(how={"enum": ["copy", "link"]}, times={"type": "integer", "minimum": 1, "maximum": 9}),
    },
]
GRAMMAR = tool_call_grammar(TOOLS, "<tool_call>", "</tool_call>", max_thought=20)
OPEN_TOOLS = [
    {"name": "bash", "parameters": record(command=TEXT)},
    {"name": "record_a_repair", "parameters": record(customer=TEXT, kind={"enum": ["clock", "watch"]}, parts=TEXTS)},
]
NODE = {"$ref": "#/$defs/node"}
SCHEMAS = {
    "texts": record(name=TEXT, note=TEXT),
    "nested": record(id={"type": "integer"}, who=record(name=TEXT, age={"type": "number"}), tags=TEXTS),
    "large items": {"type": "array", "items": record(first=TEXT, second=TEXT, third=TEXT, fourth=TEXT)},
    "numbers": {"type": "array", "items": {"type": "number"}, "minItems": 2},
    "optional": {**record(a=TEXT, b=record(x=TEXTS, y={"enum": ["red", "green"]})), "required": ["a"]},
    "recursive": {"$ref": "#/$defs/node", "$defs": {"node": record(v=TEXT, k={"type": "array", "items": NODE})}},
    "pattern": record(code=TEXT | {"pattern": "^[a-z]{4,}-[0-9]+$"}),
    "long text": record(code=TEXT | {"minLength": 12}, month=TEXT | {"pattern": "^[0-9]{4}-[0-9]{2}$"}),
}


def allowed(constraint: Constraint) -> list[int]:
    ids: list[int] = np.flatnonzero(np.unpackbits(constraint.allowed, bitorder="little")).tolist()
    return ids


def walk(tokenizer: ChatTokenizer, grammar: str, seed: int, limit: int = 400) -> list[int]:
    """A random path through a grammar, with the forced ids taken as the engine takes them."""
    constraint, rng, ids = Constraint(tokenizer.constraint, grammar), random.Random(seed), []
    while len(ids) < limit:
        token = rng.choice(allowed(constraint))
        ids += [token, *constraint.forced(token)]
        if ids[-1] == tokenizer.eos_id:
            return ids
    pytest.fail("the grammar did not end")


@pytest.fixture(scope="module")
def rows(tokenizer: ChatTokenizer) -> torch.Tensor:
    """Logits that like structure: random ones, brackets and quotation marks e^4 times as probable."""
    ids = range(tokenizer.vocab_size)
    liked = [bool(re.search(r'["{}\[\],:<]', tokenizer.decode([i]))) for i in ids]
    drawn = np.random.default_rng(1).normal(size=(8, tokenizer.vocab_size)) * 4
    return torch.from_numpy(drawn + 4 * np.array(liked)).float()


def reply(
    tokenizer: ChatTokenizer, rows: torch.Tensor, grammar: str, seed: int, limit: int, start: tuple[int, ...] = ()
) -> list[int]:
    """A reply sampled from `rows`, from its start or continued, as the engine does it."""
    constraint = Constraint(tokenizer.constraint, grammar)
    constraint.replay(start)
    asked = Sampling(limit, 1.0, 1.0, seed)
    sequence = Sequence("c", [5, *start], 1, 0, limit, asked, print, grammar=grammar, matcher=constraint)
    while len(sequence.output) < limit and sequence.ids[-1] != tokenizer.eos_id:
        row = rows[[(7 * seed + len(sequence.output)) % len(rows)]]
        token = sample(row, [sequence], sorted(tokenizer.control_ids - {tokenizer.eos_id}), tokenizer.eos_id)[0].token
        sequence.ids += [token, *constraint.forced(token, limit - len(sequence.output) - 1)]
    return sequence.output


def call_of(text: str, tools: list[dict]) -> dict:
    """The one call at the end of a reply; fails when it is not one of `tools` with arguments as described."""
    _, _, call = text.partition("<tool_call>\n")
    call, closed, rest = call.partition("\n</tool_call>")
    assert closed
    assert rest == ""
    parsed = json.loads(call)
    assert list(parsed) == ["name", "arguments"]
    jsonschema.validate(parsed["arguments"], next(t["parameters"] for t in tools if t["name"] == parsed["name"]))
    return parsed


@given(seed=st.integers(0, 100_000))
@settings(max_examples=8)
def test_any_path_is_one_valid_call(tokenizer: ChatTokenizer, seed):
    ids = walk(tokenizer, GRAMMAR, seed)
    assert ids[-1] == tokenizer.eos_id
    assert not set(ids[:-1]) & tokenizer.control_ids
    text = tokenizer.decode(ids)
    call_of(text, TOOLS)
    assert text.index("<tool_call>") <= 20


@pytest.mark.parametrize("kind", [*SCHEMAS, "call"])
def test_replies_are_whole_within_any_budget_that_suffices(tokenizer: ChatTokenizer, rows, kind):
    calls = tool_call_grammar(OPEN_TOOLS, "<tool_call>", "</tool_call>", None)
    grammar = calls if kind == "call" else grammar_of({"json": SCHEMAS[kind]})
    for seed in range(3):
        limit = 44 + 8 * seed
        ids = reply(tokenizer, rows, grammar, seed, limit)
        assert ids[-1] == tokenizer.eos_id
        assert len(ids) <= limit
        text = tokenizer.decode(ids)
        if kind == "call":
            call_of(text, OPEN_TOOLS)
        else:
            jsonschema.validate(json.loads(text), SCHEMAS[kind])


def test_a_budget_too_small_from_the_start_is_spent_and_cut(tokenizer: ChatTokenizer, rows):
    ids = reply(tokenizer, rows, grammar_of({"json": SCHEMAS["nested"]}), 1, 8)
    assert len(ids) >= 8
    assert tokenizer.eos_id not in ids


@pytest.mark.parametrize("kind", ["nested", "optional"])
def test_a_replayed_reply_goes_on_as_it_would_have(tokenizer: ChatTokenizer, rows, kind):
    grammar = grammar_of({"json": SCHEMAS[kind]})
    whole = reply(tokenizer, rows, grammar, 3, 50)
    constraint, at = Constraint(tokenizer.constraint, grammar), 0
    boundaries = []
    while at < len(whole) - 1:
        at += 1 + len(constraint.forced(whole[at], 50 - at - 1))
        boundaries.append(at)
    for boundary in boundaries[1:-1:8]:
        assert reply(tokenizer, rows, grammar, 3, 50, tuple(whole[:boundary])) == whole


def test_a_whole_reply_can_be_replayed_with_its_end_or_without(tokenizer: ChatTokenizer):
    ids = walk(tokenizer, GRAMMAR, 8)
    Constraint(tokenizer.constraint, GRAMMAR).replay(ids)
    Constraint(tokenizer.constraint, GRAMMAR).replay(ids[:-1])
    with pytest.raises(EngineRefused, match="grammar"):
        Constraint(tokenizer.constraint, 'start: "yes, of course"').replay(tokenizer.encode("yes, but"))


def test_forced_ids_are_what_the_tokenizer_would_write(tokenizer: ChatTokenizer):
    constraint = Constraint(tokenizer.constraint, 'start: "yes, of course"')
    first = tokenizer.encode("yes")[0]
    assert [first, *constraint.forced(first)] == [*tokenizer.encode("yes, of course"), tokenizer.eos_id]


def test_text_is_ended_only_when_the_budget_asks_for_it(tokenizer: ChatTokenizer):
    constraint = Constraint(tokenizer.constraint, grammar_of({"json": TEXT}))
    quote, word = tokenizer.encode('"')[0], tokenizer.encode(" a")[0]
    assert constraint.forced(quote, 9) == []
    assert constraint.forced(word, 8) == []
    assert constraint.forced(word, 4) == []
    end = constraint.forced(word, 3)
    assert tokenizer.decode(end) == '"'
    assert end[-1] == tokenizer.eos_id


def test_tokens_without_a_way_back_are_refused(tokenizer: ChatTokenizer):
    constraint = Constraint(tokenizer.constraint, grammar_of({"json": {"type": "array", "items": SCHEMAS["texts"]}}))
    bracket, brace = tokenizer.encode("[")[0], tokenizer.encode("{")[0]
    assert constraint.fits(bracket, 10)
    assert constraint.forced(bracket, 10) == []
    assert not constraint.fits(brace, 6)
    assert constraint.fits(brace, 30)
    assert constraint.fits(tokenizer.encode("]")[0], 6)


@pytest.mark.parametrize(
    ("structured", "good", "bad"),
    [
        ({"json": record(n={"type": "integer"})}, ['{"n": 3}'], ['{ "n":3}', '{"n": "x"}', "3"]),
        ({"json_object": True}, ["{}", '{"a": [1, null]}'], ["[]", "{ }"]),
        ({"regex": r"\d+/[a-c]"}, ["12/a", "3/c"], ["/a", "1/d"]),
        ({"choice": ['say "no"', "née\n"]}, ['say "no"', "née\n"], ["say", "no"]),
        ({"grammar": 'start: "a"+\n'}, ["a", "aaa"], ["", "b"]),
    ],
)
def test_structured_output_becomes_a_grammar(tokenizer: ChatTokenizer, structured, good, bad):
    assert [text for text in [*good, *bad] if accepts(tokenizer, grammar_of(structured), text)] == good


def accepts(tokenizer: ChatTokenizer, grammar: str, text: str) -> bool:
    """Whether `text` is a whole reply of the grammar, written token by token."""
    constraint, ended = Constraint(tokenizer.constraint, grammar), False
    while text:
        token, *_ = tokenizer.encode(text)
        if ended or token not in allowed(constraint):
            return False
        ids = [token, *constraint.forced(token)]
        written, ended = tokenizer.decode(ids), ids[-1] == tokenizer.eos_id
        if not text.startswith(written):
            return False
        text = text.removeprefix(written)
    return ended or tokenizer.eos_id in allowed(constraint)


@pytest.mark.parametrize(
    "structured",
    [
        {},
        {"json": "x"},
        {"json": {"a": math.nan}},
        {"json_object": False},
        {"regex": 3},
        {"choice": []},
        {"choice": "abc"},
        {"choice": [1]},
        {"regex": "a", "choice": ["b"]},
        {"yaml": {}},
    ],
)
def test_other_structured_output_is_refused(structured):
    with pytest.raises(EngineRefused):
        grammar_of(structured)


@pytest.mark.parametrize(
    "grammar",
    ["start: missing_rule", "start: <|im_start|>", 'start: "\ud800"', grammar_of({"regex": "("}),
     grammar_of({"json": {"type": "no such"}})],
)  # fmt: skip
def test_an_invalid_grammar_is_refused(tokenizer: ChatTokenizer, grammar):
    with pytest.raises(EngineRefused, match="grammar"):
        Constraint(tokenizer.constraint, grammar)


def test_a_call_needs_a_tool():
    with pytest.raises(ValueError, match="at least one"):
        tool_call_grammar([], "<a>", "</a>")
