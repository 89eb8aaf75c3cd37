"""From the turns of a log to messages: every tool result is paired with the call it answers. Used by the readers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipelines.readers.common import text_of, timestamp, word
from schemas.session import Message, Role, ToolCall


class Turn(NamedTuple):
    """One message as a log has it, before cleaning and pairing."""

    role: Role
    content: Any = None
    reasoning: Any = None
    calls: Sequence[ToolCall] = ()
    answers: str | None = None
    """For a result: the id it names. Null: it answers by order."""
    also_answers: Sequence[str] = ()
    """More ids that the same result settles."""
    name: Any = None
    is_error: bool | None = None
    agent: str | None = None
    timestamp: Any = None


@dataclass(slots=True)
class _Open:
    """A call, and whether a result has come for it."""

    message: int
    which: int
    call: ToolCall
    answered: bool = False


def conversation(turns: Iterable[Turn]) -> list[Message]:
    """Messages with every result paired with the call it answers.

    A result goes to the nearest preceding unanswered call with its id: ids repeat inside one conversation. One without
    an id, or whose id meets only calls without ids, goes to the nearest message with unanswered calls, in their order.
    A result whose id was never called answers nothing.
    """
    messages: list[Message] = []
    by_id: dict[str | None, list[_Open]] = {}
    groups: list[list[_Open]] = []  # per message with calls
    nameless: list[list[_Open]] = []  # the same, calls without ids only
    for turn in turns:
        found = None
        if turn.role == "tool":
            found = _answered(turn, by_id, groups, nameless)
            for extra in turn.also_answers:
                _take_last(by_id.get(extra, []))
        if turn.calls:
            calls = [_Open(len(messages), which, call) for which, call in enumerate(turn.calls)]
            groups.append(calls)
            for open_call in calls:
                by_id.setdefault(open_call.call.call_id, []).append(open_call)
            without = [open_call for open_call in calls if open_call.call.call_id is None]
            if without:
                nameless.append(without)
        messages.append(_message(turn, found))
    return messages


def _answered(
    turn: Turn, by_id: dict[str | None, list[_Open]], groups: list[list[_Open]], nameless: list[list[_Open]]
) -> _Open | None:
    if turn.answers is None:
        return _take_in_order(groups, word(turn.name))
    return _take_last(by_id.get(turn.answers, [])) or _take_in_order(nameless, word(turn.name))


def _take_last(calls: list[_Open]) -> _Open | None:
    while calls:
        last = calls.pop()
        if not last.answered:
            last.answered = True
            return last
    return None


def _take_in_order(groups: list[list[_Open]], name: str | None) -> _Open | None:
    while groups:
        waiting = [call for call in groups[-1] if not call.answered]
        if waiting:
            groups[-1] = waiting
            taken = next((call for call in waiting if name is not None and call.call.name == name), waiting[0])
            taken.answered = True
            return taken
        groups.pop()
    return None


def _message(turn: Turn, answered: _Open | None) -> Message:
    name = word(turn.name)
    return Message(
        role=turn.role,
        content=text_of(turn.content),
        reasoning=text_of(turn.reasoning) or None,
        tool_calls=list(turn.calls),
        name=name if answered is None else name or answered.call.name or None,
        answers_message=answered.message if answered else None,
        answers_call=answered.which if answered else None,
        is_error=turn.is_error,
        agent=turn.agent,
        timestamp=timestamp(turn.timestamp),
    )


def results_after_calls(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Turns in which a `user` turn directly after an assistant's call is the result it stands for.

    No chat protocol lets a person speak between a call and its result, so what stands there under role `user` is one.
    """
    waiting = False
    for turn in turns:
        if waiting and turn.role == "user" and not turn.calls:
            turn = turn._replace(role="tool")  # noqa: PLW2901
        waiting = turn.role == "assistant" and bool(turn.calls)
        yield turn
