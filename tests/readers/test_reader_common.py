"""Cleaning of arguments, times and text, and the pairing of results with calls."""

import json
from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.readers.common import arguments, clean, count, dumps, text_of, timestamp
from pipelines.readers.pairing import Turn, conversation
from schemas.session import ToolCall

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": [1, None]}, {"a": [1, None]}),
        ("{'a': True, 'b': None}", {"a": True, "b": None}),
        ("", {}),
        (None, {}),
        ("ls -la", {"_raw": "ls -la"}),
        ("[1, 2]", {"_raw": "[1, 2]"}),
        ("{'a': {1, 2}}", {"_raw": "{'a': {1, 2}}"}),
        ("{1: 2}", {"_raw": "{1: 2}"}),
        ("{'a': __import__('os')}", {"_raw": "{'a': __import__('os')}"}),
        ({"a": float("nan")}, {"a": None}),
    ],
)
def test_arguments_of_every_shape(given_, expected):
    assert json.loads(arguments(given_)) == expected


@given(JSON)
def test_arguments_are_always_a_clean_object(value):
    for given_ in (value, repr(value), json.dumps(value)):
        text = arguments(given_)
        assert text.encode()
        assert isinstance(json.loads(text), dict)
    assert "\0" not in json.loads(dumps([str(value)]))[0]


def test_deep_and_long_python_literals_are_left_as_text():
    for text in ("{'a':" * 5000 + "1" + "}" * 5000, "{'a': '" + "x" * 200_000 + "'}"):
        assert "_raw" in json.loads(arguments(text))


@given(st.text(st.characters(), max_size=30))
def test_clean_text_can_be_encoded_and_cleaning_is_idempotent(text):
    assert clean(text).encode() is not None
    assert clean(clean(text)) == clean(text)
    assert len(clean(text)) == len(text) or "base64" in text


def test_images_become_placeholders():
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 1000}}
    url = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + "A" * 1000}}
    assert text_of([{"type": "text", "text": "see"}, picture, url]) == "see\n[image/png]\n[image_url]"
    assert text_of("a data:image/gif;base64,R0lGODlh b") == "a [image/gif] b"


def test_times():
    noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
    for value in ("2026-01-02T12:00:00Z", "2026-01-02T13:00:00+01:00", noon.timestamp(), noon.timestamp() * 1e3):
        assert timestamp(value) == noon
    assert timestamp(int(noon.timestamp()) * 10**9) == noon
    for value in ("2026-01-02T12:00:00", "yesterday", "", None, True, -1, float("inf"), float("nan"), 10**40, []):
        assert timestamp(value) is None


@given(JSON)
def test_counts_and_times_take_anything(value):
    assert count(value) is None or count(value) >= 0
    assert timestamp(value) is None or timestamp(value).tzinfo is UTC
    text = text_of(value)
    assert text is None or text.encode() is not None


def test_counts_in_strings():
    assert count("1792489225478333952") == 1792489225478333952
    assert [count(v) for v in ("12", 12, 12.0)] == [12, 12, 12]
    assert [count(v) for v in ("-1", -1, 1.5, True, "1e3", "", "9" * 30, 2**63)] == [None] * 8


def tool_call(call_id):
    return ToolCall(call_id=call_id, name="t", arguments_json="{}")


def test_a_repeated_id_pairs_with_the_nearest_unanswered_call():
    turns = [
        Turn("assistant", calls=[tool_call("a")]),
        Turn("tool", "1", answers="a"),
        Turn("assistant", calls=[tool_call("a"), tool_call("a")]),
        Turn("tool", "2", answers="a"),
        Turn("tool", "3", answers="a"),
        Turn("tool", "4", answers="a"),
    ]
    pairs = [(m.answers_message, m.answers_call) for m in conversation(turns) if m.role == "tool"]
    assert pairs == [(0, 0), (2, 1), (2, 0), (None, None)]


def test_results_without_ids_pair_in_order_and_unknown_ids_with_nothing():
    turns = [
        Turn("tool", "early", answers="b"),
        Turn("assistant", calls=[tool_call(None), tool_call(None)]),
        Turn("tool", "1"),
        Turn("tool", "2", answers="lost"),
        Turn("assistant", calls=[tool_call("b")]),
        Turn("tool", "3", answers="other"),
        Turn("tool", "4"),
    ]
    pairs = [(m.answers_message, m.answers_call) for m in conversation(turns) if m.role == "tool"]
    assert pairs == [(None, None), (1, 0), (1, 1), (None, None), (4, 0)]


IDS = st.none() | st.sampled_from("abc")
TURNS = st.lists(
    st.builds(lambda ids: Turn("assistant", calls=[tool_call(i) for i in ids]), st.lists(IDS, max_size=3))
    | st.builds(lambda i: Turn("tool", "r", answers=i), IDS),
    max_size=25,
)


@given(TURNS)
def test_pairing_never_answers_a_call_twice_nor_one_that_comes_later(turns):
    messages = conversation(turns)
    assert len(messages) == len(turns)
    answered = Counter()
    for index, (turn, message) in enumerate(zip(turns, messages, strict=True)):
        if message.answers_message is not None:
            assert message.answers_message < index
            made = messages[message.answers_message].tool_calls[message.answers_call]
            assert turn.answers is None or made.call_id in (turn.answers, None)
            answered[message.answers_message, message.answers_call] += 1
    assert not answered or max(answered.values()) == 1


def test_pairing_many_calls_takes_no_quadratic_time():
    calls = [Turn("assistant", calls=[tool_call(str(i))]) for i in range(15_000)]
    results = [Turn("tool", "r", answers="none") for _ in range(15_000)]
    assert len(conversation([*calls, *results])) == 30_000
