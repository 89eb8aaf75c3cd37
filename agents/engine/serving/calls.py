"""Tool calls as text: Hermes tags around JSON, read back from a reply as it comes. Called by `prompt` and `chat`."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NoReturn

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Call:
    """A call that was read; `arguments` is the JSON text of an object."""

    name: str
    arguments: str


def arguments_text(text: str) -> str | None:
    """The JSON text of an object in one line, without anything that looks like a tag; None when it is no such text."""
    value = _load(text)
    return None if not isinstance(value, dict) else _dump(value)


def read_call(text: str, names: Collection[str]) -> Call | None:
    """What stands between two tags: a call of one of `names`, or None. Hostile text of any kind gives None."""
    value = _load(text)
    if not isinstance(value, dict) or value.keys() != {"name", "arguments"}:
        return None
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    written = _dump(arguments)
    return None if written is None else Call(name, written)


class CallReader:
    """Takes a reply in pieces and gives it as text and calls, in order; a call comes when it is whole.

    Nothing is lost: what looked like a call and cannot be read comes as text. A closing tag that the token budget cut
    off is forgiven. White space around calls belongs to neither. `most`: calls after that many are left out.
    """

    def __init__(self, names: Collection[str], most: int | None = None) -> None:
        self.calls = 0
        self._names, self._most = names, most
        self._rest = ""
        self._tried = 0
        self._behind = False

    def feed(self, text: str) -> list[str | Call]:
        """The next piece."""
        if not self._names:
            return [text] if text else []
        self._add(text)
        found: list[str | Call] = []
        while (start := self._rest.find(OPEN)) >= 0:
            call, end = self._whole(start + len(OPEN))
            if call is None:
                return found
            self._give(found, self._rest[:start].rstrip(), call)
            rest, self._rest, self._tried, self._behind = self._rest[end:], "", 0, True
            self._add(rest)
        held = _overlap(self._rest)
        certain = self._rest[: len(self._rest) - held].rstrip()
        self._rest = self._rest[len(certain) :]
        return [*found, certain] if certain else found

    def end(self) -> list[str | Call]:
        """Nothing follows."""
        found: list[str | Call] = []
        start = self._rest.find(OPEN)
        call = None if start < 0 else read_call(self._rest[start + len(OPEN) :].strip(), self._names)
        if call is not None:
            self._give(found, self._rest[:start].rstrip(), call)
        elif self._rest:
            found.append(self._rest)
        self._rest = ""
        return found

    def _add(self, text: str) -> None:
        """More of the reply, without white space right behind a call."""
        text = text.lstrip() if self._behind else text
        self._behind = self._behind and not text
        self._rest += text

    def _whole(self, start: int) -> tuple[Call | None, int]:
        """The call that begins at `start`, and where its closing tag ends. The tag may stand in a string of it, too."""
        at = max(start, self._tried)
        while (close := self._rest.find(CLOSE, at)) >= 0:
            call = read_call(self._rest[start:close].strip(), self._names)
            at = close + len(CLOSE)
            if call is not None:
                return call, at
        self._tried = max(at, len(self._rest) - len(CLOSE) + 1)
        return None, 0

    def _give(self, found: list[str | Call], text: str, call: Call) -> None:
        if text:
            found.append(text)
        if self._most is None or self.calls < self._most:
            self.calls += 1
            found.append(call)


def _load(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _dump(value: dict[str, Any]) -> str | None:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()  # JSON may escape half a character; no answer can hold it
    except (ValueError, RecursionError):
        return None
    return text.replace("<tool_call", "\\u003ctool_call").replace("</tool_call", "\\u003c/tool_call")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _overlap(text: str) -> int:
    """Length of the longest end of `text` that begins an opening tag."""
    return next((n for n in range(min(len(OPEN) - 1, len(text)), 0, -1) if text.endswith(OPEN[:n])), 0)
