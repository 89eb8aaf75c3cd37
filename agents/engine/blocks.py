"""Keys and values kept between calls, one block per conversation, within a budget of tokens. No torch.

Called by `scheduler`. A conversation's next turn continues its own block; a new conversation copies the longest common
beginning from any block. What does not fit is dropped, released conversations first, then least recently used ones, and
computed again when it is needed.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from agents.engine.sequence import Buffer, common_prefix


@dataclass(eq=False)
class Block:
    """`ids` have keys and values in `kv`, from its beginning."""

    ids: list[int]
    kv: Buffer


class BlockStore:
    """Blocks by conversation, and the count of tokens that they and the running sequences have allocated."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.allocated = 0
        self._held: OrderedDict[str, Block] = OrderedDict()
        self._released: deque[Block] = deque()

    def __iter__(self) -> Iterator[Block]:
        yield from self._released
        yield from self._held.values()

    def allocate(self, tokens: int) -> bool:
        """Count `tokens` as allocated, dropping blocks until they fit; False when running sequences leave no room."""
        held = sum(block.kv.capacity for block in self)
        if self.allocated - held + tokens > self.budget:
            return False
        while self.allocated + tokens > self.budget:
            dropped = self._released.popleft() if self._released else self._held.popitem(last=False)[1]
            self.allocated -= dropped.kv.capacity
        self.allocated += tokens
        return True

    def keep(self, conversation: str, block: Block) -> None:
        """Hold the block of a finished turn. Its tokens stay counted."""
        self.drop(conversation)
        self._held[conversation] = block

    def take(self, conversation: str) -> Block | None:
        """Hand a conversation's block over to its next turn. Its tokens stay counted."""
        return self._held.pop(conversation, None)

    def drop(self, conversation: str) -> None:
        """Forget a conversation's block, if it is still held."""
        dropped = self._held.pop(conversation, None)
        if dropped is not None:
            self.allocated -= dropped.kv.capacity

    def release(self, conversation: str) -> None:
        """The conversation is over: its block is the first to go, and until then others may copy from it."""
        block = self.take(conversation)
        if block is not None:
            self._released.append(block)

    def longest(self, ids: list[int]) -> tuple[Block | None, int]:
        """The block with the longest common beginning with `ids`, and its length."""
        best: tuple[Block | None, int] = (None, 0)
        for block in self:
            common = common_prefix(block.ids, ids)
            if common > best[1]:
                best = (block, common)
        return best
