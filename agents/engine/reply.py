"""The text of a reply as its tokens come. Called by `worker`; no torch."""

from collections.abc import Callable, Sequence

_LONGEST = 16
"""Tokens held back for a character that is not whole yet. No character needs more; broken bytes may go on for ever."""


class ReplyText:
    """Decodes token by token: `text` is what is known, cut at the first stop string."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: tuple[str, ...]) -> None:
        self.text = ""
        self.stopped = False
        self._decode, self._stops = decode, stops
        self._open: list[int] = []
        self._shown = 0

    def feed(self, token: int) -> None:
        """Take in the next id."""
        self._open.append(token)
        piece = self._decode(self._open)
        if not piece.endswith("�") or len(self._open) >= _LONGEST:
            self._add(piece)

    def end(self) -> None:
        """No more ids follow."""
        if self._open:
            self._add(self._decode(self._open))

    def fresh(self, *, last: bool) -> str:
        """What can be shown and was not yet. What may begin a stop string waits, unless this is the `last` call."""
        end = len(self.text)
        if not (last or self.stopped):
            end -= max((_overlap(self.text, stop) for stop in self._stops), default=0)
        piece = self.text[self._shown : end]
        self._shown += len(piece)
        return piece

    def _add(self, piece: str) -> None:
        self._open = []
        if self.stopped:
            return
        before = len(self.text)
        self.text += piece
        places = [place for stop in self._stops if (place := self.text.find(stop, max(0, before - len(stop) + 1))) >= 0]
        if places:
            self.text, self.stopped = self.text[: min(places)], True


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
