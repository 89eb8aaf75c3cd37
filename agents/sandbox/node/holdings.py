"""What a node agent keeps for holders it cannot see: each thing under an id nobody can guess, until it expires."""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from schemas.errors import SandboxLost


class Closable(Protocol):
    """A sandbox or a snapshot."""

    async def close(self) -> None:
        """Free it."""
        ...


T = TypeVar("T", bound=Closable)


class Holdings(Generic[T]):
    """Things by id. One that nobody renews for `ttl_s` seconds is due for `expired`."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._things: dict[str, T] = {}
        self._due: dict[str, float] = {}
        self._uses: Counter[str] = Counter()

    def add(self, thing: T) -> str:
        """Keep it; its id."""
        name = secrets.token_urlsafe(18)
        self._things[name] = thing
        self._renew(name)
        return name

    def get(self, name: str) -> T:
        """The thing, renewed. Raises SandboxLost for an id that is not (or no longer) one."""
        try:
            thing = self._things[name]
        except KeyError as error:
            raise SandboxLost("the node has nothing under this id: reclaimed, or the node was started again") from error
        self._renew(name)
        return thing

    @contextlib.contextmanager
    def use(self, name: str) -> Iterator[T]:
        """The same for a while: who waits for an answer lives, so it is not due until then."""
        thing = self.get(name)
        self._uses[name] += 1
        try:
            yield thing
        finally:
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._uses[name]
            if name in self._things:
                self._renew(name)

    def pop(self, name: str) -> T | None:
        """No longer keep it."""
        self._due.pop(name, None)
        return self._things.pop(name, None)

    def renew(self, names: Sequence[str]) -> list[str]:
        """Those of the ids that are not here; the others are renewed."""
        gone = [name for name in names if name not in self._things]
        for name in set(names).difference(gone):
            self._renew(name)
        return gone

    def expired(self) -> list[T]:
        """Take out what nobody renewed or uses."""
        now = asyncio.get_running_loop().time()
        names = [name for name, due in self._due.items() if due < now and name not in self._uses]
        return [thing for thing in map(self.pop, names) if thing is not None]

    def _renew(self, name: str) -> None:
        self._due[name] = asyncio.get_running_loop().time() + self._ttl_s
