"""OpenAI Responses logs: request input and response output as items, as in nemo_gym rollouts or bare request logs."""

from collections.abc import Iterator
from typing import Any

from pipelines.readers.common import (
    BadRecord,
    Draft,
    call_of,
    count,
    each,
    mapping,
    number,
    role_of,
    sequence,
    tool_specs,
    word,
)
from pipelines.readers.pairing import Turn, conversation
from pipelines.readers.parse import Problem, Value

NAME = "openai_responses"

_CALLS = ("function_call", "custom_tool_call", "mcp_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def matches(value: Any) -> bool:
    """Whether a record has the shape of this format."""
    record = mapping(value)
    if isinstance(record.get("responses_create_params"), dict):
        return True
    request, response = _parts(record)
    items = sequence(response.get("output"))
    return ("input" in request and "type" in mapping(items[0] if items else None)) or response.get(
        "object"
    ) == "response"


def read(values: Iterator[Value]) -> Iterator[Draft | Problem]:
    """One session per record."""
    return each(values, _draft)


def _parts(record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(request, response) of a record; a record that holds only one of them is both."""
    request = next(
        (record[k] for k in ("responses_create_params", "request") if isinstance(record.get(k), dict)), record
    )
    response = record["response"] if isinstance(record.get("response"), dict) else record
    return request, response


def _draft(at: Value) -> Draft:
    record = mapping(at.value)
    request, response = _parts(record)
    given, output = request.get("input"), response.get("output")
    if not isinstance(given, str | list) and not isinstance(output, list):
        raise BadRecord("unexpected_shape", "The record has neither input nor output items.", "input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else sequence(given)
    if isinstance(request.get("instructions"), str):
        items = [{"role": "system", "content": request["instructions"]}, *items]
    usage = mapping(response.get("usage"))
    tokens = (count(usage.get("input_tokens")), count(usage.get("output_tokens")))
    if not any(tokens):  # harnesses that do not count write zeros
        tokens = (None, None)
    return Draft(
        at=at,
        messages=conversation(_turns([*items, *sequence(output)])),
        source_id=word(response.get("id")),
        model=word(response.get("model")) or word(request.get("model")),
        tools=tool_specs(request.get("tools") or response.get("tools")),
        reward=number(record.get("reward")),
        outcome=word(mapping(response.get("incomplete_details")).get("reason")) or word(response.get("status")),
        input_tokens=tokens[0],
        output_tokens=tokens[1],
    )


def _turns(items: list[Any]) -> Iterator[Turn]:
    """Turns of items: reasoning, text and the calls that follow it are one message of the assistant."""
    open_turn: Turn | None = None
    for i, item in enumerate(items):
        turn = _turn(mapping(item), f"items[{i}]")
        if turn is None:
            continue
        if open_turn is not None and turn.role == "assistant" and _continues(open_turn, turn):
            open_turn = open_turn._replace(
                content=turn.content if open_turn.content is None else open_turn.content,
                calls=[*open_turn.calls, *turn.calls],
            )
            continue
        if open_turn is not None:
            yield open_turn
        open_turn = turn
    if open_turn is not None:
        yield open_turn


def _continues(before: Turn, turn: Turn) -> bool:
    if before.role != "assistant" or turn.reasoning is not None:
        return False
    return bool(turn.calls) or (before.content is None and not before.calls)


def _turn(item: dict[str, Any], field: str) -> Turn | None:
    kind = item.get("type", "message")
    if kind in _CALLS:
        return Turn("assistant", calls=[call_of({**item, "id": item.get("call_id") or item.get("id")}, field)])
    if kind in _OUTPUTS:
        return Turn("tool", item.get("output"), answers=word(item.get("call_id")))
    if kind == "reasoning":
        return Turn("assistant", reasoning=item.get("content") or item.get("summary") or [])
    if kind != "message":
        # Items of the provider's own tools (web_search_call, ...) carry their result: a call with nothing to answer it.
        name = word(kind)
        return (
            Turn("assistant", calls=[call_of({"name": name, "arguments": item.get("action")}, field)]) if name else None
        )
    role = role_of(item.get("role"))
    if role is None:
        raise BadRecord("unknown_role", "A message has no role that is known.", f"{field}.role")
    return Turn(role, item.get("content"))
