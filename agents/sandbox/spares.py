"""Sandboxes that wait ready for who asks next. State only, kept by pool.py, which makes and closes them."""

import asyncio
from collections import deque

from agents.sandbox.base import Limits, Priority
from agents.sandbox.lease import Held

Kind = tuple[Limits, Priority]
OLD = 0.1
"""The part of its lifetime that a spare may have used up when it is leased."""


class Spares:
    """At most `most` of one kind.

    The kind changes when the same other one was asked for `most` times in a row, so that no mix of kinds costs more
    than one spare closed unused for each lease.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.wanted: Kind | None = None
        """What they are. None: nobody asked yet."""
        self.failed = False
        """Making one failed: no more of them until somebody asks, who then gets to see the error."""
        self._ready: deque[Held] = deque()
        self._other: Kind | None = None
        self._others = 0

    def __len__(self) -> int:
        return len(self._ready)

    def follow(self, kind: Kind) -> None:
        """Somebody asks for this kind."""
        self.failed = False
        self._others = 0 if kind == self.wanted else self._others + 1 if kind == self._other else 1
        self._other = kind
        if self.wanted is None or self._others >= self.most:
            self.wanted = kind

    def keep(self, spare: Held) -> None:
        """One more is ready. The caller takes out what is `unfit` then: it may be of a kind that is not wanted now."""
        self._ready.append(spare)

    def take(self, kind: Kind) -> Held | None:
        """The oldest, if there is one of this kind. The caller takes out what is `unfit` before."""
        return self._ready.popleft() if self._ready and kind == self.wanted else None

    def unfit(self) -> list[Held]:
        """Take out what must not be leased: dead, too old, or of another kind."""
        return self._out([spare for spare in self._ready if not self._fit(spare)])

    def oldest(self, count: int) -> list[Held]:
        """Take out so many, or all."""
        return self._out(list(self._ready)[: max(0, count)])

    def _out(self, spares: list[Held]) -> list[Held]:
        for spare in spares:
            self._ready.remove(spare)
        return spares

    def _fit(self, spare: Held) -> bool:
        young = asyncio.get_running_loop().time() - spare.born <= OLD * spare.limits.lifetime_s
        return young and spare.sandbox.alive and (spare.limits, spare.priority) == self.wanted
