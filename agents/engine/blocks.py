"""Physical blocks of 16 tokens: who holds them, which can be found, which goes first. Called by `memory`; no torch.

A block is free, idle (nobody holds it, but a request with the same beginning would find it) or held by one or more
sequences and turns. A digest names all tokens up to and with a block's own: equal digests, equal keys and values.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from schemas.errors import EngineError


def digest(parent: bytes, ids: list[int]) -> bytes:
    """The name of a block with tokens `ids` that follows the block named `parent` (empty for the first one)."""
    return blake2b(parent + array("q", ids).tobytes(), digest_size=16).digest()


class BlockPool:
    """`count` blocks, numbered from 0. `evicted` counts idle blocks that were given to somebody else."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.evicted = 0
        self._refs = [0] * count
        self._free = list(reversed(range(count)))
        self._idle: OrderedDict[int, None] = OrderedDict()  # the first one goes first
        self._index: dict[bytes, int] = {}
        self._digests: list[bytes | None] = [None] * count
        self._user: list[str | None] = [None] * count
        self._private: dict[str, dict[int, None]] = {}  # findable blocks that only one conversation ever held

    @property
    def available(self) -> int:
        """Blocks that `take` can give."""
        return len(self._free) + len(self._idle)

    def take(self) -> int | None:
        """A block to write, held once; the idle one that was used least recently when none is free. None: all held."""
        if not self._free:
            if not self._idle:
                return None
            block, _ = self._idle.popitem(last=False)
            self._unpublish(block)
            self._free.append(block)
            self.evicted += 1
        block = self._free.pop()
        self._refs[block] = 1
        return block

    def hold(self, block: int, conversation: str) -> None:
        """One more holder of a held or idle block."""
        self._idle.pop(block, None)
        self._refs[block] += 1
        if self._user[block] not in (None, conversation):
            self._forget_user(block)

    def drop(self, block: int) -> None:
        """One holder less. The last one leaves the block idle when it can be found, free otherwise."""
        if self._refs[block] < 1:
            raise EngineError(f"block {block} was dropped, but nobody holds it")
        self._refs[block] -= 1
        if self._refs[block]:
            return
        if self._digests[block] is None:
            self._free.append(block)
        else:
            self._idle[block] = None

    def writable(self, block: int) -> bool:
        """Whether its only holder may change it: nobody else holds it, and nobody can find it."""
        return self._refs[block] == 1 and self._digests[block] is None

    def find(self, name: bytes) -> int | None:
        """The block of that digest. It is not held yet."""
        return self._index.get(name)

    def publish(self, block: int, name: bytes, conversation: str) -> None:
        """A full block may be found from now on, unless an equal one already is."""
        if name in self._index or self._digests[block] is not None:
            return
        self._index[name] = block
        self._digests[block] = name
        self._user[block] = conversation
        self._private.setdefault(conversation, {})[block] = None

    def cool(self, conversation: str) -> None:
        """A conversation is over: idle blocks that it alone ever held go first, its last ones before its first ones."""
        for block in self._private.get(conversation, {}):
            if block in self._idle:
                self._idle.move_to_end(block, last=False)

    def forget(self) -> None:
        """Nothing may be found any more."""
        for block in self._index.values():
            self._digests[block] = self._user[block] = None
        self._index.clear()
        self._private.clear()
        self._free.extend(self._idle)
        self._idle.clear()

    def audit(self, holders: Iterable[int]) -> None:
        """EngineError unless every block is exactly one of free, idle and held as often as it occurs in `holders`."""
        refs = Counter(holders)
        places = Counter([*self._free, *self._idle, *refs])
        wrong = [b for b in range(self.count) if places[b] != 1 or self._refs[b] != refs[b]]
        if wrong or len(places) != self.count:
            raise EngineError(f"blocks {wrong or sorted(places)} are lost, or held more or less often than counted")
        named = {name: block for block, name in enumerate(self._digests) if name is not None}
        if named != self._index or any(self._digests[block] is None for block in self._idle):
            raise EngineError("the index of findable blocks does not fit the blocks")
        private = {block: user for user, blocks in self._private.items() for block in blocks}
        if private != {block: user for block, user in enumerate(self._user) if user is not None}:
            raise EngineError("the blocks of single conversations do not fit the blocks")

    def _unpublish(self, block: int) -> None:
        name = self._digests[block]
        if name is not None:
            del self._index[name]
            self._digests[block] = None
            self._forget_user(block)

    def _forget_user(self, block: int) -> None:
        user, self._user[block] = self._user[block], None
        if user is not None:
            blocks = self._private[user]
            del blocks[block]
            if not blocks:
                del self._private[user]
