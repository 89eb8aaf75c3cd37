"""Helpers of the reader tests: a log written from bytes or JSON values, and what the readers make of it."""

import json
from pathlib import Path
from typing import Any

from pipelines.readers import read_file
from schemas.session import Message, Reject, Session


def write(folder: Path, content: bytes | str | list[Any], name: str = "log") -> Path:
    """A file with bytes, text, or one JSON line per list item."""
    if isinstance(content, list):
        content = "".join(json.dumps(item) + "\n" for item in content)
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(folder: Path, content: bytes | str | list[Any], **options: Any) -> tuple[list[Session], list[Reject]]:
    """Sessions and rejects of such a file."""
    rows = list(read_file(write(folder, content), root=folder, partner="acme", **options))
    return [r for r in rows if isinstance(r, Session)], [r for r in rows if isinstance(r, Reject)]


def one(folder: Path, content: bytes | str | list[Any]) -> Session:
    """The only session of such a file; nothing may be rejected."""
    sessions, rejects = read(folder, content)
    assert rejects == []
    assert len(sessions) == 1
    return sessions[0]


def roles(session: Session) -> list[str]:
    return [message.role for message in session.messages]


def answers(session: Session) -> list[tuple[int, int] | None]:
    """(message, call) of every tool result; None where it answers nothing."""
    return [_answer(m) for m in session.messages if m.role == "tool"]


def _answer(message: Message) -> tuple[int, int] | None:
    if message.answers_message is None or message.answers_call is None:
        return None
    return message.answers_message, message.answers_call


def call(call_id: str | None, name: str, arguments: Any = "{}") -> dict[str, Any]:
    """A chat-completions tool call."""
    raw = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return raw if call_id is None else {"id": call_id, **raw}
