"""One JSON value at a time, and what is wrong with it when it is none. Used by `values`, `scan` and the readers."""

import re
from dataclasses import dataclass
from json import JSONDecoder
from typing import Any

import orjson

BOM = b"\xef\xbb\xbf"
SPACE = b" \t\r\n"
_OPENING = re.compile(rb'\{\s*"[^"\\]{0,200}"\s*:|\[')
# NaN and infinities are no JSON; they are how Python writes a number that is not there, so they are read as null.
_DECODER = JSONDecoder(strict=False, parse_constant=lambda _: None)

WHY = {
    "bad_json": "The record is not JSON, or is cut.",
    "too_deep": "The record is nested too deeply.",
    "record_too_large": "The record is longer than the cap of one record.",
}
"""Reason of a problem -> sentence for a person."""


@dataclass(frozen=True, slots=True)
class Value:
    """One JSON value and where it stands."""

    value: Any
    position: str
    line: int | None
    byte_offset: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that could not be read, and why. Holds no text of the record."""

    reason: str
    detail: str
    line: int | None = None
    byte_offset: int | None = None
    field: str | None = None


def loads(data: Any) -> Any:
    """The value of strict JSON, from bytes or text; null when it is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def decode(text: str, index: int) -> tuple[Any, int, str | None]:
    """(value, end, None) of the JSON value at `index`, read tolerantly, or (None, index, reason)."""
    try:
        return *_DECODER.raw_decode(text, index), None
    except RecursionError:
        return None, index, "too_deep"
    except ValueError:
        return None, index, "bad_json"


def opening_of(record: bytes) -> bytes:
    """The bytes up to the first key of an object (`{"key":`), or `[`: what the next record begins with too."""
    match = _OPENING.match(record.removeprefix(BOM).lstrip(SPACE)[:400])
    return match.group() if match else b""


def skip_space(text: str, index: int) -> int:
    """Index of the next character that is no JSON white space."""
    while index < len(text) and text[index] in " \t\r\n":
        index += 1
    return index
