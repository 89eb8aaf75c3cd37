"""JSON values out of a log file of any layout, one after the other, in memory bounded by the largest record.

A layout is `lines` (JSONL), `array` (one top-level array) or `document` (one object, or several written one after the
other over many lines). Damage costs the damaged record alone: it is reported as a `Problem` and reading goes on behind
it. Called by `detect`, which hands the values to a reader.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import ijson
import orjson

from pipelines.readers import scan
from pipelines.readers.parse import BOM, SPACE, WHY, Problem, Value, decode, loads, opening_of, skip_space

Layout = Literal["lines", "array", "document"]

HEAD_BYTES = 1 << 20
"""How much of a file is looked at, at most, to tell its layout and format."""
QUICK_BYTES = 1 << 16
"""How much is looked at first: nearly always enough."""
_HEAD_VALUES = 64
_RESYNCS = 16
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f]")


@dataclass(frozen=True, slots=True)
class Head:
    """What the beginning of a file shows."""

    layout: Layout
    values: list[Any]
    """The first values; the last one holds only what the head has of it."""
    empty: bool


def read_head(path: Path, size: int = HEAD_BYTES) -> Head:
    """Layout and first values of a file, from its first `size` bytes."""
    with path.open("rb") as file:
        head = file.read(size)
    body = head.removeprefix(BOM).lstrip(SPACE)
    layout = _layout(body)
    if layout == "lines":
        lines = body.split(b"\n", _HEAD_VALUES)[:_HEAD_VALUES]
        values = [_partial(line) for line in lines if line.strip()]
    else:
        value = _partial(body)
        values = value[:_HEAD_VALUES] if layout == "array" and isinstance(value, list) else [value]
    return Head(layout, values, empty=not body)


def read_values(path: Path, layout: Layout) -> Iterator[Value | Problem]:
    """Every value of a file, or the problem that stands in its place."""
    with path.open("rb") as file:
        if layout == "lines":
            yield from _lines(file)
        else:
            yield from scan.Scanner(file, layout).values()


def _layout(body: bytes) -> Layout:
    first, newline, rest = body.partition(b"\n")
    opening = body[:1]
    follower = rest.lstrip(SPACE)[:1]
    if opening == b"[":
        return "lines" if follower in (b"[", b"{") and loads(first) is not None else "array"
    if opening != b"{" or not newline:
        return "lines"
    if first.strip() == b"{":
        return "document"
    if loads(first) is not None:
        return "lines"
    return "document" if _is_prefix(body) else "lines"


def _is_prefix(body: bytes) -> bool:
    """Whether `body` is one JSON value, or the undamaged beginning of one."""
    try:
        for _ in ijson.basic_parse(io.BytesIO(body), use_float=True):
            pass
    except ijson.IncompleteJSONError as error:
        return "premature EOF" in str(error)
    except (ijson.JSONError, ValueError):
        return False
    return True


def _partial(body: bytes) -> Any:
    """The value that `body` begins with, as far as it goes; null where not even a beginning can be read."""
    value = loads(body)
    if value is not None:
        return value
    text = body.decode("utf-8", "replace")
    value, _, reason = decode(text, 0)
    if reason is None:
        return value
    builder = ijson.ObjectBuilder()
    builder.value = None
    try:
        # Small steps: what stands before damage in the step that meets it is lost.
        source = io.BytesIO(_CONTROL.sub(" ", text).encode())
        for event, item in ijson.basic_parse(source, buf_size=512, use_float=True):
            builder.event(event, item)
    except (ijson.JSONError, ValueError):
        pass
    return builder.value


# Lines


def _lines(file: BinaryIO) -> Iterator[Value | Problem]:
    number = offset = 0
    while line := file.readline(scan.RECORD_CAP + 1):
        number += 1
        start, offset = offset, offset + len(line)
        if len(line) > scan.RECORD_CAP and not line.endswith(b"\n"):
            while rest := file.readline(1 << 20):
                offset += len(rest)
                if rest.endswith(b"\n"):
                    break
            yield Problem("record_too_large", WHY["record_too_large"], number, start)
            continue
        if not line.strip(SPACE) or (number == 1 and line.strip(SPACE) == BOM):
            continue
        try:
            yield Value(orjson.loads(line), f"line {number}", number, start)
        except orjson.JSONDecodeError:
            yield from _recover(line, number, start)


def _recover(record: bytes, line: int, start: int) -> Iterator[Value | Problem]:
    """What a tolerant parser can still read of a line: several values on it, broken UTF-8, NaN, control characters.

    Behind a value that cannot be read, the next one is looked for at the same opening (`{"first key":`), so that a
    cut record directly followed by the whole one on the same line costs the cut one alone.
    """
    text = record.decode("utf-8", "replace")
    mark = opening_of(record).decode("utf-8", "replace")
    index, offset = 1 if text.startswith("\ufeff") else 0, start
    damaged, resyncs, done = False, 0, 0
    while (index := skip_space(text, index)) < len(text):
        offset, done = offset + len(text[done:index].encode("utf-8", "replace")), index
        value, end, reason = decode(text, index)
        following = skip_space(text, end)
        # Next to others, only an object is a record; behind damage, only one that ends the line or meets the next one.
        clear = isinstance(value, dict | list) and (not damaged or text.startswith(mark, following))
        if reason is None and (following == len(text) or clear):
            yield Value(value, f"line {line}" if index <= 1 else f"byte {offset}", line, offset)
            index, damaged = end, False
            continue
        if not damaged:
            yield Problem(reason or "bad_json", WHY[reason or "bad_json"], line, offset)
        damaged, resyncs = True, resyncs + 1
        index = text.find(mark, index + 1) if mark and resyncs <= _RESYNCS else -1
        if index < 0:
            return
