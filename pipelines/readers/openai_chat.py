"""OpenAI chat-completions logs: `{messages}` or tau-bench's `{traj}` per record, or bare messages of one conversation.

Tool calls written as text (`<function=...>` tags, mini-swe-agent's fenced commands) are read where the prompt asks for
them, and their results, which come back under role `user`, are told from what a person said.
"""

import re
from collections.abc import Iterator
from typing import Any

from pipelines.readers.common import (
    BadRecord,
    Draft,
    call_of,
    dumps,
    each,
    mapping,
    number,
    problem_of,
    role_of,
    sequence,
    tool_specs,
    word,
)
from pipelines.readers.pairing import Turn, conversation, results_after_calls
from pipelines.readers.parse import Problem, Value
from schemas.session import ToolCall

NAME = "openai_chat"

_TAG = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>(.*?)(?:</parameter>|\Z)", re.DOTALL)
_FENCE = re.compile(r"```mswea_bash_command\n(.*?)(?:\n```|\Z)", re.DOTALL)


def matches(value: Any) -> bool:
    """Whether a record, or one bare message, has the shape of this format."""
    if isinstance(value, list):
        return bool(value) and is_message(value[0])
    return is_message(value) or is_message(next(iter(_messages(value) or []), None))


def is_message(value: Any) -> bool:
    """Whether `value` is a chat message: a role, and content or calls."""
    return (
        isinstance(value, dict)
        and role_of(value.get("role")) is not None
        and ("content" in value or "tool_calls" in value)
    )


def read(values: Iterator[Value]) -> Iterator[Draft | Problem]:
    """One session per record; bare messages make one session together."""
    loose: list[Value] = []
    for value in values:
        if is_message(value.value):
            loose.append(value)
        else:
            yield from each([value], _draft)
    if loose:
        try:
            yield Draft(at=loose[0], messages=conversation(turns([value.value for value in loose])))
        except BadRecord as bad:
            yield problem_of(bad, loose[0])


def _messages(record: Any) -> list[Any] | None:
    record = mapping(record)
    return next((record[k] for k in ("messages", "traj") if isinstance(record.get(k), list)), None)


def _draft(at: Value) -> Draft:
    record = {"messages": at.value} if isinstance(at.value, list) else mapping(at.value)
    messages = _messages(record)
    if messages is None:
        raise BadRecord("unexpected_shape", "The record has no list of messages.", "messages")
    for choice in sequence(mapping(record.get("response", record)).get("choices"))[:1]:
        messages = [*messages, mapping(choice).get("message")]
    ids = [word(record.get(k)) for k in ("task_id", "trial")]
    key = next((word(record[k]) for k in ("id", "instance_id", "conversation_id", "session_id") if k in record), None)
    score = mapping(record.get("eval_result")).get("score")
    return Draft(
        at=at,
        messages=conversation(turns(messages)),
        source_id="/".join(i for i in ids if i) or key,
        model=word(record.get("model")) or word(record.get("model_path")),
        tools=tool_specs(record.get("tools") or record.get("functions")),
        reward=number(record.get("reward", score)),
        outcome=word(mapping(record.get("meta")).get("finish_reason")) or word(record.get("finish_reason")),
    )


def turns(messages: list[Any]) -> Iterator[Turn]:
    """The turns of a list of chat messages; BadRecord when one is no message."""
    said = [turn_of(message, f"messages[{i}]") for i, message in enumerate(messages)]
    asked = [turn.content for turn in said if turn.role != "assistant" and isinstance(turn.content, str)]
    if any("<function=" in text for text in asked):
        said = [_with_text_calls(turn, _TAG) for turn in said]
    elif any("```mswea_bash_command" in text for text in asked):
        said = [_with_text_calls(turn, _FENCE) for turn in said]
    return results_after_calls(said)


def turn_of(message: Any, field: str) -> Turn:
    """One chat message as a turn."""
    if not isinstance(message, dict):
        raise BadRecord("unexpected_shape", "A message is not an object.", field)
    role = role_of(message.get("role"))
    if role is None:
        raise BadRecord("unknown_role", "A message has no role that is known.", f"{field}.role")
    raw = sequence(message.get("tool_calls"))
    legacy = message.get("function_call")
    calls = [call_of(call, f"{field}.tool_calls[{i}]") for i, call in enumerate([*raw, *([legacy] if legacy else [])])]
    error = message.get("error")
    return Turn(
        role,
        message.get("content"),
        reasoning=message.get("reasoning_content") or message.get("reasoning"),
        calls=calls,
        answers=word(message.get("tool_call_id")),
        name=message.get("name") if role == "tool" else None,
        is_error=True if role == "tool" and error else None,
        timestamp=message.get("timestamp"),
    )


def _with_text_calls(turn: Turn, pattern: re.Pattern[str]) -> Turn:
    if turn.role != "assistant" or turn.calls or not isinstance(turn.content, str):
        return turn
    calls = [_text_call(match) for match in pattern.finditer(turn.content)]
    return turn._replace(calls=calls, content=pattern.sub("", turn.content).strip() or None) if calls else turn


def _text_call(match: re.Match[str]) -> ToolCall:
    if match.re is _FENCE:
        return ToolCall(name="bash", arguments_json=dumps({"command": match[1]}))
    return ToolCall(name=match[1], arguments_json=dumps(dict(_PARAMETER.findall(match[2]))))
