"""What the readers share: cleaning of text, arguments, times and tools.

A reader turns a log record into `pairing.Turn`s, `pairing.conversation` turns those into `Message`s, and a `Draft` goes
back to `detect.read_file`, which makes the `Session`. Every function takes whatever JSON holds and never raises on it,
except `BadRecord`, which costs the record.
"""

import ast
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from pipelines.readers.parse import Problem, Value, loads
from schemas.errors import InputError
from schemas.session import Message, Role, ToolCall, ToolSpec

ROLES: dict[str, Role] = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "model": "assistant", "ai": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "ipython": "tool",
}  # fmt: skip
_FOUL = re.compile("[\0\ud800-\udfff]")
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,[A-Za-z0-9+/=_-]*")
_MIME = re.compile(r"[\w.+-]+/[\w.+-]+")
_WORD = re.compile(r"[\w.-]{1,40}")
_TEXT_KEYS = ("text", "content", "value", "refusal", "output", "thinking", "reasoning")
_REPR_CAP = 100_000
_DEPTH = 8


class BadRecord(InputError):
    """A record that is not what its format says. `field` is its path; nothing of the record is quoted."""

    def __init__(self, reason: str, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.field = reason, detail, field


@dataclass(frozen=True, slots=True)
class Draft:
    """A session before its partner, file and id are known."""

    at: Value
    """The record it starts at; a field of its value may name the partner."""
    messages: list[Message]
    position: str | None = None
    """Where it stands, when that is not the record's own place."""
    place: str | None = None
    """The same for a reject: a path without a word of the record."""
    source_id: str | None = None
    model: str | None = None
    tools: Sequence[ToolSpec] = ()
    reward: float | None = None
    outcome: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


def each(values: Iterable[Value], convert: Callable[[Value], Draft]) -> Iterator[Draft | Problem]:
    """For formats with one session per record: every record becomes a draft, or the problem it has."""
    for value in values:
        try:
            yield convert(value)
        except BadRecord as bad:
            yield problem_of(bad, value)


def problem_of(bad: BadRecord, at: Value) -> Problem:
    """The problem of the record at `at`."""
    offset = None if at.position.startswith("line") else at.byte_offset
    return Problem(bad.reason, bad.detail, at.line, offset, bad.field)


# Cleaning


def clean(text: str) -> str:
    """`text` without NUL and lone surrogates (U+FFFD instead), and with inline base64 files as `[type/subtype]`."""
    if "\0" in text or not (text.isascii() or _encodes(text)):
        text = _FOUL.sub("\ufffd", text)
    if ";base64," in text:
        text = _DATA_URL.sub(r"[\1]", text)
    return text


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def word(value: Any) -> str | None:
    """A name or id: cleaned text of a string or a number; null for anything else and for the empty string."""
    if isinstance(value, str):
        return clean(value) or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64 else None


def role_of(value: Any) -> Role | None:
    """The role that a log's word for it means; null for an unknown one."""
    return ROLES.get(value) if isinstance(value, str) else None


def mapping(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """`value` if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def text_of(content: Any, depth: int = 0) -> str | None:
    """The text of a string, a list of content blocks or an object; images and unknown blocks as `[kind]`.

    Null stays null. An object that is no content block (a tool's structured result) is written as JSON.
    """
    if content is None or isinstance(content, str):
        return clean(content) if content is not None else None
    if isinstance(content, list):
        texts = [_block(block, depth + 1) for block in content]
        return "\n".join(text for text in texts if text is not None) if texts else None
    if isinstance(content, dict) and "type" in content:
        return _block(content, depth + 1)
    return dumps(content)


def _block(block: Any, depth: int) -> str | None:
    if not isinstance(block, dict):
        return text_of(block, depth) if depth < _DEPTH else None
    kind = block.get("type")
    if kind is None and not any(key in block for key in _TEXT_KEYS):
        return dumps(block)
    for key in _TEXT_KEYS:
        if isinstance(block.get(key), str):
            return clean(block[key])
    for key in _TEXT_KEYS:
        if isinstance(block.get(key), list | dict) and depth < _DEPTH:
            return text_of(block[key], depth)
    source = mapping(block.get("source"))
    mime = source.get("media_type") or block.get("mime_type")
    if isinstance(mime, str) and _MIME.fullmatch(mime):
        return f"[{mime}]"
    return f"[{kind}]" if isinstance(kind, str) and _WORD.fullmatch(kind) else "[block]"


def dumps(value: Any) -> str:
    """Compact JSON with clean strings; NaN and infinities become null, integers beyond 64 bits become strings."""
    try:
        data = orjson.dumps(value)
    except TypeError:
        data = orjson.dumps(_cleaned(value, 0))
    if b"\\u0000" in data or b";base64," in data:
        data = orjson.dumps(_cleaned(value, 0))
    return data.decode()


def _cleaned(value: Any, depth: int) -> Any:
    if depth > 200:
        return None
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key) if isinstance(key, str) else repr(key): _cleaned(v, depth + 1) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item, depth + 1) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return hex(value)
    return value if value is None or isinstance(value, bool | int | float) else None


def arguments(value: Any) -> str:
    """A call's arguments as a JSON object, from an object, JSON text or a Python literal; else {"_raw": text}."""
    if value is None or value == "":
        return "{}"
    if isinstance(value, dict):
        return dumps(value)
    if not isinstance(value, str):
        return dumps({"_raw": dumps(value)})
    parsed = loads(value)
    if not isinstance(parsed, dict):
        parsed = _literal(value)
    return dumps(parsed if isinstance(parsed, dict) else {"_raw": value})


def _literal(text: str) -> Any:
    """A Python literal, e.g. the repr of a dict; null when `text` is none. Never runs anything."""
    if len(text) > _REPR_CAP or not text.lstrip().startswith("{"):
        return None
    try:
        value = ast.literal_eval(text.strip())
        orjson.dumps(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value


def count(value: Any) -> int | None:
    """A count from an integer, an integral float or digits in a string; null for anything else."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, float) and value.is_integer() and 0 <= value < 2**53:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def number(value: Any) -> float | None:
    """A finite number, or a boolean as 0 or 1; null for anything else."""
    if isinstance(value, int | float) and abs(value) < 1e300 and math.isfinite(value):
        return float(value)
    return None


def timestamp(value: Any) -> datetime | None:
    """UTC time from ISO text with a zone or an epoch in s, ms, us or ns; null for text without a zone."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.astimezone(UTC) if moment.tzinfo else None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e19:
            scale = next(s for limit, s in ((1e11, 1), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9)) if value < limit)
            return datetime.fromtimestamp(value / scale, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


# Tools


def call_of(raw: Any, field: str) -> ToolCall:
    """A tool call from any of the shapes logs use: nested under `function`, flat, or `function` as the bare name."""
    if not isinstance(raw, dict):
        raise BadRecord("unexpected_shape", "A tool call is not an object.", field)
    inner = raw["function"] if isinstance(raw.get("function"), dict) else raw
    name = inner.get("name") if inner.get("name") is not None else inner.get("function", inner.get("toolName"))
    given = next((inner[k] for k in ("arguments", "args", "input", "parameters") if inner.get(k) is not None), None)
    call_id = next((word(raw[k]) for k in ("id", "call_id", "tool_call_id", "toolCallId") if word(raw.get(k))), None)
    return ToolCall(call_id=call_id, name=word(name) or "", arguments_json=arguments(given))


def tool_specs(raw: Any) -> list[ToolSpec]:
    """Declared tools, from a list or its JSON text; what has no name is left out."""
    if isinstance(raw, str):
        raw = loads(raw)
    specs = []
    for entry in sequence(raw):
        inner = entry.get("function") if isinstance(mapping(entry).get("function"), dict) else entry
        tool = mapping(inner)
        name = word(tool.get("name"))
        if name:
            parameters = next((tool[k] for k in ("parameters", "input_schema", "inputSchema") if tool.get(k)), None)
            specs.append(
                ToolSpec(
                    name=name,
                    description=text_of(tool.get("description")),
                    parameters_json=dumps(parameters) if parameters is not None else None,
                )
            )
        elif isinstance(entry, str) and word(entry):
            specs.append(ToolSpec(name=clean(entry)))
    return specs
