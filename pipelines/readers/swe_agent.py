"""SWE-agent `.traj` files: one run as `trajectory` (what was executed) and `history` (what the model saw).

The two are views of one run. The prompt comes from the history, without demonstrations; the steps come from the
trajectory, which alone has the last observation and steps that the history dropped; call ids come from the history.
"""

import re
from collections.abc import Iterator
from typing import Any

from pipelines.readers.common import BadRecord, Draft, count, dumps, each, mapping, sequence, word
from pipelines.readers.openai_chat import turn_of
from pipelines.readers.pairing import Turn, conversation, results_after_calls
from pipelines.readers.parse import Problem, Value
from schemas.session import ToolCall

NAME = "swe_agent"

_COMMANDS = frozenset(
    """open goto scroll_up scroll_down create edit insert search_dir search_file find_file submit str_replace_editor
    decompile disassemble connect_start connect_sendline connect_stop debug_start debug_continue debug_step
    debug_add_breakpoint debug_exec debug_stop exit_forfeit""".split()  # noqa: SIM905
)
_FIRST_WORD = re.compile(r"\s*([\w.-]+)")


def matches(value: Any) -> bool:
    """Whether a record has the shape of this format."""
    record = mapping(value)
    step = mapping(next(iter(sequence(record.get("trajectory"))), None))
    said = mapping(next(iter(sequence(record.get("history"))), None))
    stepped = isinstance(step.get("action"), str) and any(key in step for key in ("observation", "thought", "response"))
    return stepped or ("role" in said and any(key in said for key in ("agent", "message_type", "is_demo")))


def read(values: Iterator[Value]) -> Iterator[Draft | Problem]:
    """One session per run."""
    return each(values, _draft)


def _draft(at: Value) -> Draft:
    record = mapping(at.value)
    steps, history = record.get("trajectory"), record.get("history")
    if not isinstance(steps, list) and not isinstance(history, list):
        raise BadRecord("unexpected_shape", "The record has neither trajectory nor history.", "trajectory")
    seen = [message for message in map(mapping, sequence(history)) if not message.get("is_demo")]
    turns = list(_steps(seen, steps)) if isinstance(steps, list) and steps else list(_history(seen))
    info = mapping(record.get("info"))
    stats = mapping(info.get("model_stats"))
    return Draft(
        at=at,
        messages=conversation(turns),
        source_id=word(info.get("instance_id")) or word(record.get("instance_id")),
        outcome=word(info.get("exit_status")),
        input_tokens=count(stats.get("tokens_sent")) or None,
        output_tokens=count(stats.get("tokens_received")) or None,
    )


def _steps(history: list[dict[str, Any]], steps: list[Any]) -> Iterator[Turn]:
    replies = [i for i, message in enumerate(history) if message.get("role") == "assistant"]
    for i, message in enumerate(history[: replies[0] if replies else None]):
        yield turn_of(message, f"history[{i}]")
    for i, raw in enumerate(steps):
        if not isinstance(raw, dict):
            raise BadRecord("unexpected_shape", "A step is not an object.", f"trajectory[{i}]")
        said: dict[str, Any] = {}
        if replies and history[replies[0]].get("action") == raw.get("action"):
            said = history[replies.pop(0)]
        calls = turn_of(said, f"history[{i}]").calls if sequence(said.get("tool_calls")) else _calls(raw)
        yield Turn("assistant", raw.get("response") or raw.get("thought"), calls=calls)
        if calls and raw.get("observation") is not None:
            yield Turn(
                "tool", raw["observation"], answers=calls[0].call_id, also_answers=[c.call_id or "" for c in calls[1:]]
            )


def _history(history: list[dict[str, Any]]) -> Iterator[Turn]:
    turns = []
    for i, message in enumerate(history):
        turn = turn_of(message, f"history[{i}]")
        if turn.role == "assistant" and not turn.calls:
            turn = Turn("assistant", turn.content, calls=_calls(message))
        ids = [i for i in map(word, sequence(message.get("tool_call_ids"))) if i]
        if turn.role == "tool" and ids:
            turn = Turn("tool", turn.content, answers=ids[0], also_answers=ids[1:])
        turns.append(turn)
    return results_after_calls(turns)


def _calls(step: dict[str, Any]) -> list[ToolCall]:
    """The action of a step as a call: an SWE-agent command by its name, anything else is `bash`."""
    action = step.get("action")
    if not isinstance(action, str) or not action.strip():
        return []
    first = _FIRST_WORD.match(action)
    name = first[1] if first and first[1] in _COMMANDS else "bash"
    return [ToolCall(name=name, arguments_json=dumps({"command": action}))]
