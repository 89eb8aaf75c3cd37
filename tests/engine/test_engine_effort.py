"""Effort: levels, the budgets they give, and what counts as thinking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.engine.effort import PRESETS, Reasoning, level, reasoning_budget, reply_budget

OPEN, CLOSE = [7, 8], [7, 9, 9]


def run(sampled: list[int], reasoning: Reasoning) -> list[int]:
    """A reply: `sampled` ids and what is forced after each, fed as the worker feeds them."""
    reply: list[int] = []
    for token in sampled:
        queue = [token]
        while queue:
            reply.append(queue.pop(0))
            queue += reasoning.feed(reply[-1])
    return reply


@pytest.mark.parametrize(
    ("effort", "most", "expected"),
    [(None, 128, 128), (100, 128, 128), (50, 128, 64), (75, 512, 384), (1, 128, 16), (1, 8, 8)],
)
def test_effort_is_a_share_of_the_budget(effort, most, expected):
    assert reply_budget(effort, most) == expected


@pytest.mark.parametrize("effort", [0, 101, -1, True, "huge", ""])
def test_effort_outside_its_range_is_an_error(effort):
    with pytest.raises(ValueError, match="effort"):
        level(effort)


def test_presets_are_levels():
    assert [level(name) for name in ("low", "high", "max")] == [50, 75, 100]
    assert sorted(PRESETS.values()) == [level(name) for name in ("minimal", "low", "medium", "high", "max")]
    assert level(33) == 33


@given(st.integers(1, 100), st.integers(1, 5000))
def test_thinking_leaves_room_for_an_answer(effort, most):
    budget = reasoning_budget(effort, most)
    assert 0 <= budget < reply_budget(effort, most) <= most


def test_no_level_leaves_thinking_unbounded():
    assert reasoning_budget(None, 100) is None
    with pytest.raises(ValueError, match="1-100"):
        reasoning_budget(0, 100)


def test_ids_between_the_markers_are_counted():
    reasoning = Reasoning(OPEN, CLOSE, None)
    assert run([1, *OPEN, 2, 3, 7, *CLOSE, 4, *OPEN, 5, *CLOSE, 6], reasoning).count(9) == 4
    assert (reasoning.tokens, reasoning.thinking) == (4, False)


def test_without_a_marker_nothing_counts():
    reasoning = Reasoning(OPEN, CLOSE, 0)
    assert run([1, 7, 2, 8, *CLOSE], reasoning) == [1, 7, 2, 8, *CLOSE]
    assert reasoning.tokens == 0


def test_a_reply_may_begin_inside():
    reasoning = Reasoning([], CLOSE, 3)
    assert run([1, 2, 3, 4, 5], reasoning) == [1, 2, 3, *CLOSE, 4, 5]
    assert (reasoning.tokens, reasoning.thinking) == (3, False)


def test_a_marker_begun_at_the_border_is_completed():
    reasoning = Reasoning(OPEN, CLOSE, 3)
    assert run([*OPEN, 1, 2, 7, 4], reasoning) == [*OPEN, 1, 2, *CLOSE, 4]
    assert reasoning.tokens == 2


@given(st.lists(st.integers(5, 10), max_size=60), st.integers(0, 9))
def test_thinking_never_passes_its_budget(sampled, budget):
    reasoning = Reasoning(OPEN, CLOSE, budget)
    reply = run(sampled, reasoning)
    # Several thoughts share one budget: once it is spent, each that is opened is closed at once.
    assert reasoning.tokens <= budget
    assert not reasoning.thinking or reasoning.tokens < budget
    again = Reasoning(OPEN, CLOSE, budget)
    for token in reply:
        again.feed(token)
    assert (again.tokens, again.thinking) == (reasoning.tokens, reasoning.thinking)


def test_a_closing_marker_is_needed():
    with pytest.raises(ValueError, match="closing"):
        Reasoning([1], [], None)
