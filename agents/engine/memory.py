"""Where the tokens of each sequence live: finds, shares, takes and frees blocks. Called by `scheduler`; no torch.

Two pools: blocks of layers with full attention, whose full blocks everybody with the same beginning shares, and blocks
of sliding-window layers, which belong to one sequence and are freed as soon as the window has left them.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from agents.engine.blocks import BlockPool, digest
from agents.engine.sequence import BLOCK, Sequence
from agents.engine.turns import Turn, Turns

Copies = list[tuple[int, int]]
"""(source, target) blocks."""


@dataclass
class Chain:
    """Digests of a sequence's blocks, as far as somebody asked; the first `published` blocks need no publishing."""

    names: list[bytes] = field(default_factory=list)
    published: int = 0


class Memory:
    """Blocks of all sequences and turns.

    `window`: tokens that a sliding-window layer sees, the newest one included; None without such layers. `replay`:
    tokens that run again to fill the window blocks of a beginning whose full-attention blocks were found.
    """

    def __init__(
        self, blocks: int, window: int | None, window_blocks: int, replay: int, ttl_s: float, clock: Callable[[], float]
    ) -> None:
        self.pool, self.window_pool = BlockPool(blocks), BlockPool(window_blocks)
        self.turns = Turns(self.pool, self.window_pool, ttl_s, clock)
        self._window, self._replay = window, replay
        self._chains: defaultdict[Sequence, Chain] = defaultdict(Chain)

    def find(self, sequence: Sequence) -> bool:
        """Give a sequence without blocks what is known of all its tokens but the last.

        Returns whether its turn is continued where it ended. The turn stays; `free` undoes everything.
        """
        self._found(sequence)
        whole = len(sequence.table)
        self._chains[sequence].published = whole
        turn = self.turns.get(sequence.conversation)
        if turn is None or not self._agrees(turn, sequence, whole):
            self._skip(sequence, whole * BLOCK, [])
            return False
        known = self._join(turn, sequence, whole)
        window = self._join_window(turn, sequence, known)
        self._skip(sequence, known, window)
        return sequence.computed == min(len(turn.ids), len(sequence.ids) - 1)

    def follow(self, sequence: Sequence) -> int:
        """Take the next blocks from others that have finished them meanwhile. Returns how many tokens were found."""
        first = max(sequence.computed, sequence.kept)
        if len(sequence.table) * BLOCK != first or not self._found(sequence):
            return 0
        whole = len(sequence.table)
        self._chains[sequence].published = whole
        self._skip(sequence, whole * BLOCK, [])
        return whole * BLOCK - first

    def reach(self, sequence: Sequence, end: int, making: set[bytes]) -> int:
        """Where a piece of prompt up to `end` has to stop: in front of a block that others have, or make in this step.

        `making`: digests of the blocks that are made in this step; its own are added.
        """
        first = max(sequence.computed, sequence.kept)
        takable = (len(sequence.ids) - 1) // BLOCK
        index, rest = divmod(first, BLOCK)
        if rest == 0 and index < takable and self._name(sequence, index) in making:
            # Also a replay waits: it would have to begin again behind the block that is being made.
            return sequence.computed
        for index in range(first // BLOCK, min(-(-end // BLOCK), len(sequence.ids) // BLOCK)):
            name = self._name(sequence, index)
            if first < index * BLOCK < takable * BLOCK and (name in making or self.pool.find(name) is not None):
                return index * BLOCK
            if not sequence.mixed:
                making.add(name)
        return end

    def extend(self, sequence: Sequence, end: int, copies: Copies, window_copies: Copies) -> bool:
        """Blocks for writing tokens up to `end`; shared ones are replaced by copies to be made.

        False: blocks ran out. What it got so far stays, and the call may be repeated.
        """
        first = max(sequence.computed, sequence.kept)
        return self._cover(self.pool, sequence.table, first, end, copies) and (
            self._window is None
            or self._cover(self.window_pool, sequence.window, sequence.computed, end, window_copies)
        )

    def advance(self, sequence: Sequence, count: int) -> None:
        """`count` more tokens are computed: full blocks become findable, blocks behind the window free."""
        sequence.computed += count
        chain, full = self._chains[sequence], sequence.computed // BLOCK
        if full > chain.published and not sequence.mixed:
            for index in range(chain.published, full):
                self.pool.publish(sequence.table[index], self._name(sequence, index), sequence.conversation)
            chain.published = full
        if self._window is not None:
            index = self._window_start(sequence.computed) - 1
            while index >= 0 and sequence.window[index] >= 0:
                self.window_pool.drop(sequence.window[index])
                sequence.window[index] = -1
                index -= 1

    def adopt(self, sequence: Sequence) -> bool:
        """Blocks for `ids[:computed]` of a sequence that comes from elsewhere. False, and none: there is no room."""
        computed, sequence.kept = sequence.computed, 0
        start, blocks = self._window_start(computed), -(-computed // BLOCK)
        room, window_room = self.room()
        if blocks > room or (self._window is not None and blocks - start > window_room):
            return False  # asked again and again, it must not cost what is kept
        self._chains[sequence] = Chain()
        sequence.table, sequence.window = [], [-1] * start if self._window is not None else []
        if self._cover(self.pool, sequence.table, 0, computed, []) and (
            self._window is None or self._cover(self.window_pool, sequence.window, start * BLOCK, computed, [])
        ):
            return True
        self.leave(sequence)
        return False

    def free(self, sequence: Sequence) -> None:
        """A sequence gives its blocks back. Its last ones will be the first to be used again."""
        for block in reversed(sequence.table):
            self.pool.drop(block)
        self._free_window(sequence)
        sequence.table = []
        self._chains[sequence].published = 0

    def leave(self, sequence: Sequence) -> None:
        """A sequence is over."""
        self.free(sequence)
        del self._chains[sequence]

    def keep(self, sequence: Sequence) -> None:
        """A reply is whole: its conversation's next call may continue it, unless keys are of older weights."""
        full, rest = divmod(sequence.computed, BLOCK)
        if sequence.computed and not sequence.mixed:
            ids, names = sequence.ids[: sequence.computed], [self._name(sequence, index) for index in range(full)]
            tail = sequence.table[full] if rest else None
            self.turns.keep(sequence.conversation, ids, names, tail, list(sequence.window))
        self.leave(sequence)

    def release(self, conversation: str) -> None:
        """A conversation is over."""
        self.turns.drop(conversation)
        self.pool.cool(conversation)

    def flush(self) -> None:
        """Weights have changed: nothing is found again, and whatever holds blocks is mixed."""
        self.turns.clear()
        self.pool.forget()
        for sequence in self._chains:
            sequence.mixed = sequence.mixed or bool(sequence.table)

    def missing(self, sequence: Sequence, tokens: int, chunk: int) -> tuple[int, int]:
        """Blocks, and window blocks, still to be taken before `tokens` of a sequence are computed, `chunk` at once."""
        blocks = -(-tokens // BLOCK)
        if self._window is None:
            return max(0, blocks - len(sequence.table)), 0
        # A span of n tokens touches at most (n - 2) // 16 + 2 blocks.
        spanned = (self._window - 1 + min(chunk, tokens - sequence.computed) - 2) // BLOCK + 2
        held = len(sequence.window) - sequence.window.count(-1)
        return max(0, blocks - len(sequence.table)), max(0, min(blocks, spanned) - held)

    def room(self) -> tuple[int, int]:
        """Blocks, and window blocks, that can be had without taking any from a sequence."""
        pool, window_pool = self.pool, self.window_pool
        return pool.available + len(self.turns.held(pool)), window_pool.available + len(self.turns.held(window_pool))

    def audit(self) -> None:
        """EngineError unless both pools conserve their blocks."""
        held = [block for sequence in self._chains for block in sequence.table]
        self.pool.audit(held + self.turns.held(self.pool))
        held = [block for sequence in self._chains for block in sequence.window if block >= 0]
        self.window_pool.audit(held + self.turns.held(self.window_pool))

    def _name(self, sequence: Sequence, index: int) -> bytes:
        names = self._chains[sequence].names
        while len(names) <= index:
            start = len(names) * BLOCK
            names.append(digest(names[-1] if names else b"", sequence.ids[start : start + BLOCK]))
        return names[index]

    def _found(self, sequence: Sequence) -> bool:
        """Append blocks to the table as long as the next one is found. Returns whether any was."""
        before, table = len(sequence.table), sequence.table
        while len(table) < (len(sequence.ids) - 1) // BLOCK:
            block = self.pool.find(self._name(sequence, len(table)))
            if block is None:
                break
            self.pool.hold(block, sequence.conversation)
            table.append(block)
        return len(table) > before

    def _skip(self, sequence: Sequence, known: int, window: list[int]) -> None:
        """Go on after `known` tokens, or at a block so far in front of them that the window fills up again."""
        sequence.kept = known
        if self._window is None or window:
            sequence.computed, sequence.window = known, window
            return
        start = max(0, known - self._replay) // BLOCK * BLOCK
        if start > sequence.computed:
            self._free_window(sequence)
            sequence.computed, sequence.window = start, [-1] * (start // BLOCK)

    def _agrees(self, turn: Turn, sequence: Sequence, whole: int) -> bool:
        return whole == 0 or (len(turn.names) >= whole and turn.names[whole - 1] == self._name(sequence, whole - 1))

    def _join(self, turn: Turn, sequence: Sequence, whole: int) -> int:
        """Share the turn's block after the `whole` first ones, as far as tokens agree. Returns how many are known."""
        start = whole * BLOCK
        theirs, ours = turn.ids[start : start + BLOCK], sequence.ids[start : min(start + BLOCK, len(sequence.ids) - 1)]
        pairs = zip(theirs, ours, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(theirs), len(ours)))
        block = self.pool.find(turn.names[whole]) if whole < len(turn.names) else turn.tail
        if same == 0 or block is None:
            return start
        self.pool.hold(block, sequence.conversation)
        sequence.table.append(block)
        return start + same

    def _join_window(self, turn: Turn, sequence: Sequence, known: int) -> list[int]:
        """Share the turn's window blocks when they hold the whole window in front of token `known`; else none."""
        window = turn.window[: -(-known // BLOCK)]
        if -1 in window[self._window_start(known) :]:
            return []
        for block in window:
            if block >= 0:
                self.window_pool.hold(block, sequence.conversation)
        return window

    def _window_start(self, computed: int) -> int:
        """The first block that tokens from `computed` on see in sliding-window layers."""
        return max(0, computed - (self._window or 0) + 1) // BLOCK

    def _cover(self, pool: BlockPool, table: list[int], first: int, end: int, copies: Copies) -> bool:
        """Make `table` writable for tokens [first, end). False: blocks ran out."""
        at = first // BLOCK
        if first < end and at < len(table) and not pool.writable(table[at]):
            target = self._take(pool)
            if target is None:
                return False
            copies.append((table[at], target))
            pool.drop(table[at])
            table[at] = target
        while len(table) * BLOCK < end:
            block = self._take(pool)
            if block is None:
                return False
            table.append(block)
        return True

    def _take(self, pool: BlockPool) -> int | None:
        block = pool.take()
        while block is None and self.turns.reclaim(pool):
            block = pool.take()
        return block

    def _free_window(self, sequence: Sequence) -> None:
        for block in sequence.window:
            if block >= 0:
                self.window_pool.drop(block)
        sequence.window = []
