"""Which tokens the next step computes. Called by `engine` between steps; no torch.

First come, first served: a request starts when a place in the batch and room for all of its tokens are there, so a
started one never has to stop. Replies go before prompts; prompts fill what is left of the step, in chunks.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from agents.engine.blocks import Block, BlockStore
from agents.engine.sequence import ALIGN, Buffer, Sequence, common_prefix

STEP_TOKENS = 256
"""Tokens per step: enough rows for the linear layers to run at full speed, few enough to keep replies moving."""
ROUND = 128
"""Buffers grow in this many tokens, so that a short next turn needs no new one."""


@dataclass(frozen=True)
class Slice:
    """`count` tokens of a sequence from position `sequence.computed` on."""

    sequence: Sequence
    count: int


class Scheduler:
    """Waiting and running sequences, and the blocks between turns."""

    def __init__(
        self, max_batch: int, budget: int, make: Callable[[int], Buffer], step_tokens: int = STEP_TOKENS
    ) -> None:
        """`budget`: tokens of keys and values in all; `make` gives a buffer for a number of tokens."""
        self.blocks = BlockStore(budget)
        self.running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._max_batch = max_batch
        self._make = make
        # Every running reply must fit, and one piece of a prompt.
        self._step_tokens = max(step_tokens, max_batch + ALIGN)

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.running or self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a request."""
        self._waiting.append(sequence)

    def drain(self) -> list[Sequence]:
        """Take out everything, running or waiting (the engine closes or has failed)."""
        everything = [*self.running, *self._waiting]
        self._waiting.clear()
        for sequence in list(self.running):
            self.finish(sequence)
        return everything

    def schedule(self) -> list[Slice]:
        """The next step. Empty only when nothing is left to do."""
        for sequence in [s for s in self.running if s.cancelled]:
            self.finish(sequence)
        self._waiting = deque(s for s in self._waiting if not s.cancelled)
        for sequence in self.running:
            self._follow(sequence)
        while self._waiting and len(self.running) < self._max_batch and self._admit(self._waiting[0]):
            self.running.append(self._waiting.popleft())
        return self._slices()

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out of the batch and hold what it computed for the conversation's next turn."""
        sequence.done = True
        self.running.remove(sequence)
        for other in self.running:
            if other.leader is sequence:
                self._follow(other)
        if sequence.kv is not None:
            self.blocks.keep(sequence.conversation, Block(sequence.ids[: sequence.computed], sequence.kv))
            sequence.kv = None

    def _slices(self) -> list[Slice]:
        left = self._step_tokens
        slices = []
        for sequence in sorted(self.running, key=lambda s: not s.replying):
            if sequence.leader is not None or left <= 0:
                continue
            count = _fitting(sequence, left)
            if count > 0:
                slices.append(Slice(sequence, count))
                left -= count
        return slices

    def _admit(self, sequence: Sequence) -> bool:
        """Give a sequence its buffer, with as much of its beginning as is known already."""
        blocks = self.blocks
        own, own_common = blocks.take(sequence.conversation), 0
        if own is not None:
            own_common = min(common_prefix(own.ids, sequence.ids), sequence.prompt - 1)
            if own.kv.capacity >= sequence.capacity and own_common > 0:
                sequence.kv, sequence.computed, sequence.cached = own.kv, own_common, own_common
                return True
            # A buffer that is too small counts as held until it has been copied, so that it may be dropped for room.
            blocks.keep(sequence.conversation, own)
        rounded = -(-sequence.capacity // ROUND) * ROUND
        capacity = rounded if rounded <= blocks.budget else sequence.capacity
        source, common = blocks.longest(sequence.ids[: sequence.prompt - 1])
        common -= common % ALIGN
        if own is not None and own_common >= common:
            source, common = own, own_common
        if not blocks.allocate(capacity):
            return False
        sequence.kv = self._make(capacity)
        if source is not None and common > 0:
            sequence.kv.copy_from(source.kv, common)
            sequence.computed = sequence.cached = common
        blocks.drop(sequence.conversation)
        self._find_leader(sequence)
        return True

    def _find_leader(self, sequence: Sequence) -> None:
        for other in self.running:
            common = min(common_prefix(other.ids[: other.prompt], sequence.ids), sequence.prompt - 1)
            common -= common % ALIGN
            if common > max(sequence.computed, sequence.shared):
                sequence.leader, sequence.shared = other, common
        self._follow(sequence)

    def _follow(self, sequence: Sequence) -> None:
        """Copy from the leader once it has computed what both begin with, or as much as it had when it stopped."""
        leader = sequence.leader
        if leader is None or not (leader.done or leader.computed >= sequence.shared):
            return
        sequence.leader = None
        common = min(leader.computed, sequence.shared)
        if leader.kv is not None and sequence.kv is not None and common > sequence.computed:
            sequence.kv.copy_from(leader.kv, common)
            sequence.computed = sequence.cached = common


def _fitting(sequence: Sequence, room: int) -> int:
    """Tokens of a sequence for a step with `room` left: all that wait, or as many as end at a whole piece."""
    if sequence.pending <= room:
        return sequence.pending
    end = (sequence.computed + room) // ALIGN * ALIGN
    return max(0, end - sequence.computed)
