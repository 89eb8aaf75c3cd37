"""ShareGPT tool chat: `conversations[{from, value}]`, and its younger form with `messages` of typed content."""

from collections.abc import Iterator
from typing import Any

from pipelines.readers.common import BadRecord, Draft, call_of, each, mapping, role_of, sequence, tool_specs, word
from pipelines.readers.pairing import Turn, conversation
from pipelines.readers.parse import Problem, Value, loads

NAME = "sharegpt"

_CALLERS = ("function_call", "tool_call")
_RESULTS = ("observation", "tool_response", "function_response")


def matches(value: Any) -> bool:
    """Whether a record has the shape of this format."""
    first = mapping(next(iter(sequence(mapping(value).get("conversations"))), None))
    if isinstance(first.get("from"), str):
        return True
    first = mapping(next(iter(sequence(mapping(value).get("messages"))), None))
    block = next(iter(sequence(first.get("content"))), None)
    return isinstance(block, dict) and "type" in block and "value" in block


def read(values: Iterator[Value]) -> Iterator[Draft | Problem]:
    """One session per record."""
    return each(values, _draft)


def _draft(at: Value) -> Draft:
    record = mapping(at.value)
    if isinstance(record.get("conversations"), list):
        turns = [_from_turn(m, f"conversations[{i}]") for i, m in enumerate(record["conversations"])]
    elif isinstance(record.get("messages"), list):
        turns = [_typed_turn(m, f"messages[{i}]") for i, m in enumerate(record["messages"])]
    else:
        raise BadRecord("unexpected_shape", "The record has no conversations.", "conversations")
    system = record.get("system")
    if isinstance(system, str) and system:
        turns.insert(0, Turn("system", system))
    return Draft(
        at=at,
        messages=conversation(turns),
        source_id=word(record.get("id")),
        model=word(record.get("model")),
        tools=tool_specs(record.get("tools")),
    )


def _from_turn(message: Any, field: str) -> Turn:
    message = mapping(message)
    sender, value = message.get("from"), message.get("value")
    if sender in _CALLERS:
        return Turn("assistant", calls=_calls(value, f"{field}.value"))
    if sender in _RESULTS:
        return Turn("tool", value)
    role = role_of(sender)
    if role is None:
        raise BadRecord("unknown_role", "A message has no sender that is known.", f"{field}.from")
    return Turn(role, value)


def _typed_turn(message: Any, field: str) -> Turn:
    message = mapping(message)
    role = role_of(message.get("role"))
    if role is None:
        raise BadRecord("unknown_role", "A message has no role that is known.", f"{field}.role")
    content = message.get("content")
    blocks = [mapping(block) for block in sequence(content)]
    calls = [
        call for b in blocks if b.get("type") == "tool_call" for call in _calls(b.get("value"), f"{field}.content")
    ]
    texts = [block for block in blocks if block.get("type") not in ("tool_call", "reasoning")]
    return Turn(
        role,
        (texts or None) if isinstance(content, list) else content,
        reasoning=[block for block in blocks if block.get("type") == "reasoning"],
        calls=calls,
    )


def _calls(value: Any, field: str) -> list[Any]:
    """Calls from JSON text or an object, one or a list; text that is neither is kept as a call without a name."""
    parsed = loads(value) if isinstance(value, str) else value
    if isinstance(parsed, list):
        return [call_of(call, field) for call in parsed]
    return [call_of(parsed if isinstance(parsed, dict) else {"arguments": value}, field)]
