"""What a finished reply leaves for its conversation's next call, for minutes (S18). Called by `memory`; no torch.

Full blocks can be found by their digests. The last block, which is not full, and the blocks of sliding windows cannot,
so they are held here under the conversation's name, until its next call, its release, their time is over or others need
the blocks.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from agents.engine.blocks import BlockPool


@dataclass(frozen=True)
class Turn:
    """`ids` are computed; `names` are the digests of their full blocks, `tail` the block of the rest, if there is any.

    `window` is as in `Sequence.window`; empty without sliding-window layers. `deadline`: by the clock of `Turns`.
    """

    ids: list[int]
    names: list[bytes]
    tail: int | None
    window: list[int]
    deadline: float


class Turns:
    """Turns by conversation, the oldest first."""

    def __init__(self, pool: BlockPool, window_pool: BlockPool, ttl_s: float, clock: Callable[[], float]) -> None:
        self._pool, self._window_pool = pool, window_pool
        self._ttl_s, self._clock = ttl_s, clock
        self._turns: OrderedDict[str, Turn] = OrderedDict()

    def keep(self, conversation: str, ids: list[int], names: list[bytes], tail: int | None, window: list[int]) -> None:
        """Hold `tail` and `window` on, in place of what was kept before."""
        self.drop(conversation)
        if tail is not None:
            self._pool.hold(tail, conversation)
        for block in window:
            if block >= 0:
                self._window_pool.hold(block, conversation)
        self._turns[conversation] = Turn(ids, names, tail, window, self._clock() + self._ttl_s)

    def get(self, conversation: str) -> Turn | None:
        """A conversation's turn; it stays here."""
        return self._turns.get(conversation)

    def drop(self, conversation: str) -> None:
        """Forget a turn, if there is one."""
        turn = self._turns.pop(conversation, None)
        if turn is None:
            return
        if turn.tail is not None:
            self._pool.drop(turn.tail)
        for block in turn.window:
            if block >= 0:
                self._window_pool.drop(block)

    def expire(self) -> None:
        """Forget turns whose time is over."""
        while self._turns:
            conversation, turn = next(iter(self._turns.items()))
            if turn.deadline > self._clock():
                return
            self.drop(conversation)

    def reclaim(self, pool: BlockPool) -> bool:
        """Forget the oldest turn that holds blocks of `pool`. False: none does."""
        for conversation, turn in self._turns.items():
            if self._held(turn, pool):
                self.drop(conversation)
                return True
        return False

    def clear(self) -> None:
        """Forget all turns."""
        for conversation in list(self._turns):
            self.drop(conversation)

    def held(self, pool: BlockPool) -> list[int]:
        """The blocks of `pool` that turns hold."""
        return [block for turn in self._turns.values() for block in self._held(turn, pool)]

    def _held(self, turn: Turn, pool: BlockPool) -> list[int]:
        if pool is self._window_pool:
            return [block for block in turn.window if block >= 0]
        return [] if turn.tail is None else [turn.tail]
