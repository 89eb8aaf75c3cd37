"""JSON values out of a log file of any layout, one after the other, in memory bounded by the largest record.

A layout is `lines` (JSONL), `array` (one top-level array) or `document` (one object, or several written one after the
other over many lines). Damage costs the damaged record alone: it is reported as a `Problem` and reading goes on behind
it. Called by `detect`, which hands the values to a reader.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecoder
from pathlib import Path
from typing import Any, BinaryIO, Literal

import ijson
import orjson

Layout = Literal["lines", "array", "document"]

HEAD_BYTES = 1 << 20
"""How much of a file is looked at, at most, to tell its layout and format."""
QUICK_BYTES = 1 << 16
"""How much is looked at first: nearly always enough."""
RECORD_CAP = 64 << 20
"""Bytes of one record; a longer one is a reject."""
DAMAGE_CAP = 256 << 20
"""Bytes that may be scanned in vain for the end of damaged records before the rest of an array is given up."""
_HEAD_VALUES = 64
_RESYNCS = 16
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_OPENING = re.compile(rb'\{\s*"[^"\\]{0,200}"\s*:|\[')
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]"]', re.DOTALL)
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f]")
_SCALAR_END = re.compile(rb"[,\]\s]")
# NaN and infinities are no JSON; they are how Python writes a number that is not there, so they are read as null.
_DECODER = JSONDecoder(strict=False, parse_constant=lambda _: None)


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
    body = head.removeprefix(_BOM).lstrip(_SPACE)
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
            yield from _Scanner(file, layout).values()


def _layout(body: bytes) -> Layout:
    first, newline, rest = body.partition(b"\n")
    opening = body[:1]
    follower = rest.lstrip(_SPACE)[:1]
    if opening == b"[":
        return "lines" if follower in (b"[", b"{") and _loads(first) is not None else "array"
    if opening != b"{" or not newline:
        return "lines"
    if first.strip() == b"{":
        return "document"
    if _loads(first) is not None:
        return "lines"
    return "document" if _is_prefix(body) else "lines"


def _loads(data: bytes | memoryview) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


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
    value = _loads(body)
    if value is not None:
        return value
    text = body.decode("utf-8", "replace")
    value, _, reason = _decode(text, 0)
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
    while line := file.readline(RECORD_CAP + 1):
        number += 1
        start, offset = offset, offset + len(line)
        if len(line) > RECORD_CAP and not line.endswith(b"\n"):
            while rest := file.readline(1 << 20):
                offset += len(rest)
                if rest.endswith(b"\n"):
                    break
            yield Problem("record_too_large", _WHY["record_too_large"], number, start)
            continue
        if not line.strip(_SPACE) or (number == 1 and line.strip(_SPACE) == _BOM):
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
    mark = _opening(record).decode("utf-8", "replace")
    index, offset = 1 if text.startswith("\ufeff") else 0, start
    damaged, resyncs, done = False, 0, 0
    while (index := _skip_space(text, index)) < len(text):
        offset, done = offset + len(text[done:index].encode("utf-8", "replace")), index
        value, end, reason = _decode(text, index)
        rest = _skip_space(text, end) < len(text)
        # Next to others, only an object is a record; behind damage, only one that reaches the end of the line is.
        if reason is None and (not rest or (isinstance(value, dict | list) and not damaged)):
            yield Value(value, f"line {line}" if index <= 1 else f"byte {offset}", line, offset)
            index = end
            continue
        if not damaged:
            yield Problem(reason or "bad_json", _WHY[reason or "bad_json"], line, offset)
        damaged, resyncs = True, resyncs + 1
        index = text.find(mark, index + 1) if mark and resyncs <= _RESYNCS else -1
        if index < 0:
            return


_WHY = {
    "bad_json": "The record is not JSON, or is cut.",
    "too_deep": "The record is nested too deeply.",
    "record_too_large": f"The record is longer than {RECORD_CAP} bytes.",
}


def _decode(text: str, index: int) -> tuple[Any, int, str | None]:
    """(value, end, None), or (None, index, reason)."""
    try:
        return *_DECODER.raw_decode(text, index), None
    except RecursionError:
        return None, index, "too_deep"
    except ValueError:
        return None, index, "bad_json"


def _opening(record: bytes) -> bytes:
    match = _OPENING.match(record.removeprefix(_BOM).lstrip(_SPACE)[:400])
    return match.group() if match else b""


def _skip_space(text: str, index: int) -> int:
    while index < len(text) and text[index] in " \t\r\n":
        index += 1
    return index


# Arrays and documents


class _Scanner:
    """A window over a file that hands out the elements of an array, or the objects written one after the other."""

    def __init__(self, file: BinaryIO, layout: Layout) -> None:
        self.file, self.layout = file, layout
        self.window, self.base, self.eof = b"", 0, False
        self.opening, self.marked, self.wasted = b"", -1, 0

    def values(self) -> Iterator[Value | Problem]:
        self._fill(RECORD_CAP if self.layout == "document" else HEAD_BYTES)
        index = len(_BOM) if self.window.startswith(_BOM) else 0
        if self.layout == "document" and self.eof and (value := _loads(self.window[index:])) is not None:
            yield Value(value, f"byte {index}", None, index)
            return
        if self.layout == "array":
            index = self.window.index(b"[") + 1
        yield from self._elements(index)

    def _elements(self, index: int) -> Iterator[Value | Problem]:
        number = 0
        while True:
            index = self._to_next(index)
            offset = self.base + index
            if index == len(self.window):
                if self.layout == "array":
                    yield Problem("truncated", "The file ends inside the array.", None, offset)
                return
            if self.layout == "array" and self.window[index : index + 1] == b"]":
                if self._to_next(index + 1) < len(self.window):
                    yield Problem("trailing_data", "Something follows the array.", None, offset + 1)
                return
            self.opening = self.opening or _opening(self.window[index : index + 400])
            value, index, reason = self._element(index)
            if reason is None:
                yield Value(value, f"item {number}" if self.layout == "array" else f"byte {offset}", None, offset)
            else:
                yield Problem(reason, _WHY[reason], None, offset)
                index = self._resync(offset + 1)
                if index < 0:
                    return
            number += 1

    def _element(self, index: int) -> tuple[Any, int, str | None]:
        """(value, end, None) of the element at `index`, or (None, index, reason)."""
        guess = self._guess(index)
        if guess > 0 and (value := _loads(memoryview(self.window)[index:guess])) is not None:
            return value, guess, None
        end = self._end(index)
        if end < 0:
            self.wasted += len(self.window) - index
            return None, index, "bad_json" if self.eof else "record_too_large"
        value = _loads(memoryview(self.window)[index:end])
        if value is not None:
            return value, end, None
        text = self.window[index:end].decode("utf-8", "replace")
        value, stop, reason = _decode(text, 0)
        if reason is None and stop == len(text):
            return value, end, None
        self.wasted += end - index
        return None, index, reason or "bad_json"

    def _guess(self, index: int) -> int:
        """Where the element at `index` ends if the next opening in the window begins the next one; -1 without any.

        The guess is checked by parsing: a slice that is one whole value is the element. It saves scanning for brackets.
        """
        if not self.opening:
            return -1
        if self.marked <= self.base + index:
            found = self.window.find(self.opening, index + 1)
            self.marked = self.base + (found if found >= 0 else len(self.window))
        guess = self.marked - self.base
        if guess >= len(self.window):
            return -1
        while self.window[guess - 1] in b" \t\r\n,":
            guess -= 1
        return guess

    def _end(self, index: int) -> int:
        """Where the value at `index` ends; -1 when it does not, in the file or within the cap."""
        if self.window[index] not in b'{["':
            match = _SCALAR_END.search(self.window, index + 1)
            return match.start() if match else len(self.window)
        depth, place = 0, index
        while True:
            for token in _TOKEN.finditer(self.window, place):
                kind = self.window[token.start()]
                if kind == 0x22 and token.end() - token.start() == 1:  # a string that the window does not close
                    place = token.start()
                    break
                place = token.end()
                if kind != 0x22:
                    depth += 1 if kind in b"{[" else -1
                if depth == 0:
                    return place
            if self.eof or len(self.window) - index > RECORD_CAP:
                return -1
            self._fill(len(self.window))

    def _resync(self, offset: int) -> int:
        """Index of the next opening at or behind a file offset, past damage.

        -1 when there is none, or when too much has been scanned in vain to go on.
        """
        if not self.opening or self.wasted > DAMAGE_CAP:
            return -1
        index = offset - self.base
        while (found := self.window.find(self.opening, index)) < 0 and not self.eof:
            index = self._drop(max(index, len(self.window) - len(self.opening)))
            self._fill(HEAD_BYTES)
        return found

    def _to_next(self, index: int) -> int:
        """Index of the next byte that is neither space nor comma; the window's length at the end of the file."""
        while True:
            while index < len(self.window) and self.window[index] in b" \t\r\n,":
                index += 1
            if not self.eof and len(self.window) - index < HEAD_BYTES // 4:
                index = self._drop(index)
                self._fill(HEAD_BYTES)
            elif index < len(self.window) or self.eof:
                return index

    def _fill(self, size: int) -> None:
        size = min(size, RECORD_CAP)
        chunk = self.file.read(size)
        self.eof = len(chunk) < size
        self.window += chunk
        self.marked = -1

    def _drop(self, index: int) -> int:
        """Forget what stands before `index`."""
        self.window, self.base = self.window[index:], self.base + index
        return 0
