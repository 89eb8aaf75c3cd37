"""One node agent as a client sees it: requests, renewing, and what is known of its load. Made by client.py.

A request that gets no answer raises SandboxLost and is never sent again: a command may have run. The node then is out
of placement until it answers a renewal; when it has not for `lost_s`, all that is held there is lost at once.
"""

import asyncio
import contextlib
import errno
import weakref
from collections.abc import MutableMapping
from typing import Protocol, TypeVar

import httpx
from aiohttp import ClientError
from httpx_aiohttp import AiohttpTransport
from pydantic import ValidationError

from agents.sandbox.node import wire
from agents.sandbox.node.placement import Known, NodeReading
from schemas.errors import ConfigError, SandboxDied, SandboxError, SandboxLost

BEAT_S = 1.0
"""Between two renewals, which also bring the node's reading."""
LOST_S = 10.0
"""A node that has not answered for so long is dead."""
CONNECT_S = 5.0
ANSWER_S = 30.0
"""For whatever a node does at once; a command has its own time on top, files have that of a slow line."""
SLOWEST = 2 * 2**20
"""Bytes per second."""
KEPT_S = 15.0
"""An unused connection is kept for so long. Must be less than the server's, or a request meets a closing connection."""

Answer = TypeVar("Answer", bound=wire.Wire)


class Losable(Protocol):
    """A remote sandbox or snapshot."""

    def lose(self, error: SandboxDied) -> None:
        """Every use raises this from now on."""
        ...


class NotSent(SandboxError):
    """This process has no descriptor left for a request: no fault of the node, and nothing on it has changed."""


class Link:
    """Belongs to the event loop in which it is first used."""

    def __init__(self, url: str, token: str | None, beat_s: float = BEAT_S, lost_s: float = LOST_S) -> None:
        self.url = url
        self.leases: MutableMapping[str, Losable] = weakref.WeakValueDictionary()
        """Held there, by id; with `snapshots`, what is renewed. What its holder forgets is not, and so reclaimed."""
        self.snapshots: MutableMapping[str, Losable] = weakref.WeakValueDictionary()
        self.reading: NodeReading | None = None
        """None while the node does not answer."""
        self.placed = 0
        """Leases taken less leases given back since the reading."""
        self.refused = False
        """See `Known`."""
        self.rejected: ConfigError | None = None
        """The node wants another token."""
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._beat_s = beat_s
        self._lost_s = lost_s
        self._client: httpx.AsyncClient | None = None
        self._beating: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()
        self._beats = asyncio.Lock()
        self._closed = False
        self._read_at = self._heard_at = 0.0
        self._missed = 0
        """Renewals without an answer, one after the other."""
        self._waiting: set[asyncio.Timeout] = set()

    def known(self) -> Known | None:
        """What placement may use; None: leave it out."""
        if self.reading is None:
            return None
        return Known(self.reading, asyncio.get_running_loop().time() - self._read_at, self.placed, self.refused)

    async def call(self, path: str, body: wire.Wire, answer: type[Answer], more_s: float = 0.0) -> Answer:
        """POST. Raises what the node raised; SandboxLost when it does not answer, not as a node agent, or not to us."""
        if self._closed:
            raise SandboxLost(f"{self.url}{path}: the pool is closed")
        data = body.model_dump_json().encode()
        if len(data) > wire.MAX_BODY:
            raise SandboxError(f"{len(data)} bytes are too large for one request; {wire.MAX_BODY} are not")
        limit = asyncio.timeout(ANSWER_S + more_s + len(data) / SLOWEST)
        try:
            async with limit:
                self._waiting.add(limit)
                response = await self._http().post(path, content=data)
            if response.status_code == 200:
                return answer.model_validate_json(response.content)
        except (httpx.HTTPError, ClientError, OSError, ValidationError) as error:
            reason = f"{self.url}{path}: {type(error).__name__}: {error}".removesuffix(": ")
            if _no_descriptors(error):
                raise NotSent(reason) from error
            self._silent()
            raise SandboxLost(reason) from error
        finally:
            self._waiting.discard(limit)
        failure = wire.error(response.content)
        if isinstance(failure, ConfigError):
            sent = "" if "Authorization" in self._headers else " (none was sent)"
            self.rejected = ConfigError(f"{self.url}: {failure}{sent}")
            self._silent()
            raise SandboxLost(str(self.rejected))
        raise failure

    async def beat(self) -> None:
        """Renew what is held and read the node's load, once. A node that does not answer, or not us, raises nothing."""
        async with self._beats:
            loop = asyncio.get_running_loop()
            self._heard_at = self._heard_at or loop.time()
            asked, placed = wire.Renew(leases=list(self.leases), snapshots=list(self.snapshots)), self.placed
            try:
                async with asyncio.timeout(min(CONNECT_S, self._lost_s)):
                    renewed = await self.call("/renew", asked, wire.Renewed)
            except NotSent:
                return
            except (SandboxError, ValueError, TimeoutError) as error:
                self.reading = None
                self._missed += 1
                # One alone may only tell that this process was held up.
                if self._missed > 1 and loop.time() - self._heard_at > self._lost_s:
                    self._lose_all(f"{self.url} has not answered for {self._lost_s:g} s: {error}")
                return
            self._take(renewed, placed, loop.time())

    def start(self) -> None:
        """Beat from now on."""
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat_for_ever())

    async def close(self) -> None:
        """Stop; nothing is sent any more. What is still held expires on the node. Safe to call twice."""
        self._closed = True
        if self._beating is not None:
            self._beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beating
            self._beating = None
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=0, keepalive_expiry=KEPT_S)  # 0 is aiohttp's word for no limit
            self._client = httpx.AsyncClient(
                base_url=self.url,
                transport=AiohttpTransport(limits=limits),
                headers=self._headers | {"Content-Type": "application/json"},
                timeout=httpx.Timeout(None, connect=CONNECT_S),
            )
        return self._client

    async def _beat_for_ever(self) -> None:
        while True:
            self._sooner.clear()
            await self.beat()
            if self.reading is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._sooner.wait(), self._beat_s)
            else:
                await asyncio.sleep(self._beat_s)

    def _take(self, renewed: wire.Renewed, placed: int, now: float) -> None:
        self._heard_at, self._missed, self.rejected = now, 0, None
        self.reading, self._read_at, self.refused = renewed.reading, now, False
        self.placed -= placed
        for name in renewed.gone:
            for held in (self.leases, self.snapshots):
                if thing := held.pop(name, None):
                    thing.lose(SandboxLost(f"{self.url} does not have it any more"))

    def _silent(self) -> None:
        """Out of placement, and ask at once how it is."""
        self.reading = None
        self._sooner.set()

    def _lose_all(self, why: str) -> None:
        for held in (self.leases, self.snapshots):
            for thing in held.values():
                thing.lose(SandboxLost(why))
            held.clear()
        now = asyncio.get_running_loop().time()
        for limit in self._waiting:
            if not limit.expired():
                limit.reschedule(now)


def _no_descriptors(error: BaseException | None) -> bool:
    """Whether that is at the root of it: each library on the way wraps the error of the one below."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            return True
        error = error.__cause__ or error.__context__
    return False
