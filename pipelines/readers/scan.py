"""The elements of one top-level array, or objects written one after the other, from a window over the file.

Used by `values`. Damage costs the damaged element: reading goes on at the next one that begins like the first.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal

from pipelines.readers.parse import BOM, WHY, Problem, Value, decode, loads, opening_of

RECORD_CAP = 64 << 20
"""Bytes of one record; a longer one is a reject."""
DAMAGE_CAP = 256 << 20
"""Bytes that may be scanned in vain for the end of damaged records before the rest of an array is given up."""
_STEP = 1 << 20
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]"]', re.DOTALL)
_SCALAR_END = re.compile(rb"[,\]\s]")


class Scanner:
    """A window over a file that hands out the elements of an array, or the objects written one after the other."""

    def __init__(self, file: BinaryIO, layout: Literal["array", "document"]) -> None:
        self.file, self.layout = file, layout
        self.window, self.base, self.eof = b"", 0, False
        self.opening, self.marked, self.wasted = b"", -1, 0

    def values(self) -> Iterator[Value | Problem]:
        """Every element, or the problem that stands in its place."""
        self._fill(RECORD_CAP if self.layout == "document" else _STEP)
        index = len(BOM) if self.window.startswith(BOM) else 0
        if self.layout == "document" and self.eof and (value := loads(self.window[index:])) is not None:
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
            self.opening = self.opening or opening_of(self.window[index : index + 400])
            value, index, reason = self._element(index)
            if reason is None:
                yield Value(value, f"item {number}" if self.layout == "array" else f"byte {offset}", None, offset)
            else:
                yield Problem(reason, WHY[reason], None, offset)
                index = self._resync(offset + 1)
                if index < 0:
                    return
            number += 1

    def _element(self, index: int) -> tuple[Any, int, str | None]:
        """(value, end, None) of the element at `index`, or (None, index, reason)."""
        guess = self._guess(index)
        if guess > 0 and (value := loads(memoryview(self.window)[index:guess])) is not None:
            return value, guess, None
        end = self._end(index)
        if end < 0:
            self.wasted += len(self.window) - index
            return None, index, "bad_json" if self.eof else "record_too_large"
        value = loads(memoryview(self.window)[index:end])
        if value is not None:
            return value, end, None
        text = self.window[index:end].decode("utf-8", "replace")
        value, stop, reason = decode(text, 0)
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
            self._fill(_STEP)
        return found

    def _to_next(self, index: int) -> int:
        """Index of the next byte that is neither space nor comma; the window's length at the end of the file."""
        while True:
            while index < len(self.window) and self.window[index] in b" \t\r\n,":
                index += 1
            if not self.eof and len(self.window) - index < _STEP // 4:
                index = self._drop(index)
                self._fill(_STEP)
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
