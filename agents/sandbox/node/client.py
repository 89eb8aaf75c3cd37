"""The pool over many machines: leases placed on node agents. Made by the runtime; see node/placement.py for how.

Any number of these (replicas, in any number of processes) share the same nodes and know nothing of each other.
"""

import asyncio
import contextlib
import heapq
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from agents.sandbox.base import Limits, Priority, Snapshot
from agents.sandbox.node import wire
from agents.sandbox.node.link import BEAT_S, LOST_S, Link
from agents.sandbox.node.placement import order
from agents.sandbox.node.remote import RemoteSandbox, RemoteSnapshot, again
from schemas.errors import ConfigError, SandboxError, SandboxLost, SandboxRefused
from schemas.ids import derive_seed

FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
"""Between two rounds of asking all nodes; doubles from the first to the last while there is no room."""
UNREACHABLE_S = 300.0
"""Who has waited for so long while no node answered is refused."""
FULL = ("live", "memory", "pids", "fds", "disk")
"""Causes of refusals that others would meet too, whatever their class."""
T = TypeVar("T")
log = logging.getLogger(__name__)
_RANK: Mapping[Priority, int] = {"latency": 0, "background": 1}


@dataclass(order=True)
class _Waiter:
    """The most urgent is the smallest."""

    rank: int
    arrival: int
    since: float = field(compare=False)
    limits: Limits = field(compare=False)
    priority: Priority = field(compare=False)
    turn: asyncio.Future[RemoteSandbox] = field(compare=False)


class Nodes:
    """See `base.SandboxPool`. Belongs to the event loop in which it is first used; that must not block for seconds.

    `token` is what every node wants. `seed` decides placement only, never what a sandbox does; replicas need different
    ones. `wait_s`: how long a lease may wait for room, None for ever.
    """

    def __init__(
        self,
        urls: Sequence[str],
        token: str | None = None,
        *,
        seed: int = 0,
        wait_s: float | None = None,
        beat_s: float = BEAT_S,
        lost_s: float = LOST_S,
    ) -> None:
        if not urls or not all(map(_is_url, urls)):
            raise ConfigError(f"sandbox nodes are http:// or https:// URLs, not {list(urls)}")
        self._links = {url: Link(url, token, beat_s, lost_s) for url in (url.rstrip("/") for url in urls)}
        self._rng = random.Random(derive_seed("placement", seed))  # noqa: S311  (no secret)
        self._wait_s = wait_s
        self._line: list[_Waiter] = []
        """Who waits for room; a heap."""
        self._arrivals = 0
        self._asking: asyncio.Task[None] | None = None
        """Asks for the first in line while there is a line."""
        self._first_look: asyncio.Task[None] | None = None
        self._started = False
        self._behind: set[asyncio.Task[Any]] = set()
        """Requests for sandboxes, and the giving back of those that came when nobody wanted them any more."""
        self._silent_since: float | None = None
        """Since when no node answers."""
        self._room = asyncio.Event()
        """A sandbox was given back, or another waiter is the first in line."""
        self._refusals: dict[str, SandboxError] = {}
        """What the last round of asking brought, by node."""
        self._closed = False

    async def lease(self, limits: Limits, priority: Priority = "latency") -> RemoteSandbox:
        """A fresh sandbox on some node, latency-sensitive leases first. Raises SandboxRefused with causes by node.

        It does not wait when no node ever answered, nor for limits that none of those that answer can ever give.
        ConfigError when, at the start, a node wants another token, or later all that could answer do.
        """
        await self._start()
        if (not self._line or self._wait_s == 0) and (sandbox := await self._ask_all(limits, priority)):
            return sandbox
        if self._wait_s == 0:
            raise self._refusal("no room")
        self._arrivals += 1
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[RemoteSandbox] = loop.create_future()
        waiter = _Waiter(_RANK[priority], self._arrivals, loop.time(), limits, priority, turn)
        heapq.heappush(self._line, waiter)
        if self._line[0] is waiter:
            self._room.set()  # ask for it now, not after a pause that was another one's
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_for_the_line())
        try:
            async with asyncio.timeout(self._wait_s):
                return await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                await turn.result().close()  # it came together with the end of the wait
            if isinstance(error, TimeoutError):
                raise self._refusal(f"no room in {self._wait_s:g} s") from error
            raise

    async def fork(self, snapshot: Snapshot, priority: Priority = "latency") -> RemoteSandbox:
        """On the node of the snapshot. Raises SandboxRefused at once when that is full, SandboxLost when it is gone."""
        if not isinstance(snapshot, RemoteSnapshot) or snapshot.link is not self._links.get(snapshot.link.url):
            raise TypeError(f"nodes fork their own snapshots, not {type(snapshot).__name__}")
        if snapshot.gone is not None:
            raise again(snapshot.gone)
        asked = wire.Fork(snapshot=snapshot.name, priority=priority)
        return await self._ask(snapshot.link, "/fork", asked, snapshot.limits)

    async def close(self) -> None:
        """End every sandbox and snapshot it has, where the node answers; elsewhere they expire. Safe to call twice.

        Who asks or waits is refused. The first error of a node that could not end one is raised when all was tried.
        """
        self._closed = True
        for task in (self._first_look, self._asking):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        while self._behind:
            await asyncio.wait(self._behind)
        held = [thing for link in self._links.values() for thing in (*link.leases.values(), *link.snapshots.values())]
        closing = (thing.close() for thing in held if isinstance(thing, RemoteSandbox | RemoteSnapshot))
        ends = await asyncio.gather(*closing, return_exceptions=True)
        for link in self._links.values():
            await link.close()
        for error in filter(None, ends):
            raise error

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxRefused("closed", "the pool is closed")

    async def _start(self) -> None:
        """Know something of every node before the first decision; who comes meanwhile waits for the same."""
        self._check_open()
        while not self._started:
            if self._first_look is None:
                self._first_look = asyncio.create_task(self._look())
            look = self._first_look
            await asyncio.wait([look])
            self._check_open()
            look.result()

    async def _look(self) -> None:
        links = self._links.values()
        try:
            await asyncio.gather(*(link.beat() for link in links))
            self._raise_rejected()
            if not any(link.reading for link in links):
                raise SandboxRefused("unreachable", f"none of the nodes answers: {', '.join(self._links)}")
            for link in links:
                link.start()
            self._started = True
        finally:
            self._first_look = None

    def _raise_rejected(self) -> None:
        for link in self._links.values():
            if link.rejected is not None:
                raise ConfigError(str(link.rejected))

    async def _ask_all(self, limits: Limits, priority: Priority) -> RemoteSandbox | None:
        """One after the other, until one has room."""
        refusals: dict[str, SandboxError] = {}
        known = {url: known for url, link in self._links.items() if (known := link.known())}
        for url in order(known, limits, priority, self._rng):
            link = self._links[url]
            try:
                return await self._ask(link, "/lease", wire.Lease(limits=limits, priority=priority), limits)
            except SandboxError as error:  # unsupported, or a zygote that died: another node may be well
                self._check_open()
                link.refused |= not isinstance(error, SandboxRefused) or error.cause in FULL
                refusals[url] = error
        self._refusals = refusals
        self._watch_silence()
        if refusals and all(isinstance(e, SandboxRefused) and e.cause == "limits" for e in refusals.values()):
            raise self._refusal("no node can ever give that")
        if refusals and not any(isinstance(e, SandboxRefused | SandboxLost) for e in refusals.values()):
            raise next(iter(refusals.values()))  # it is not for want of room, so waiting does not help
        return None

    def _watch_silence(self) -> None:
        if any(link.reading for link in self._links.values()):
            self._silent_since = None
            return
        self._raise_rejected()
        if self._silent_since is None:
            self._silent_since = asyncio.get_running_loop().time()
            log.warning("leases wait, as none of the nodes answers any more: %s", ", ".join(self._links))

    async def _ask(self, link: Link, path: str, body: wire.Wire, limits: Limits) -> RemoteSandbox:
        """Goes on when the asker is cancelled: the answer may be on its way, and what comes is then given back."""
        self._check_open()
        asking = self._keep(asyncio.create_task(self._place(link, path, body, limits)))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._keep(asyncio.create_task(_give_back(asking)))
            raise

    async def _place(self, link: Link, path: str, body: wire.Wire, limits: Limits) -> RemoteSandbox:
        link.placed += 1
        try:
            leased = await link.call(path, body, wire.Leased)
        except BaseException:
            link.placed -= 1
            raise
        sandbox = RemoteSandbox(link, leased.lease, limits, self._room.set)
        if self._closed:
            await sandbox.close()
            self._check_open()
        return sandbox

    def _keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task

    def _refusal(self, why: str) -> SandboxRefused:
        causes = {url: getattr(e, "cause", type(e).__name__) for url, e in self._refusals.items()}
        causes |= {url: "unreachable" for url, link in self._links.items() if link.reading is None}
        details = "; ".join(f"{url}: {self._refusals.get(url, cause)}" for url, cause in sorted(causes.items()))
        most = Counter(causes.values()).most_common(1)
        return SandboxRefused(most[0][0] if most else "queue", f"{why}: {details or 'others were before it'}")

    async def _ask_for_the_line(self) -> None:
        """For the first in line alone: all of them asking would only be refused more often, and overtake each other."""
        pause = FIRST_PAUSE_S
        try:
            while self._line:
                first = self._line[0]
                sandbox = None
                self._room.clear()  # before asking: what is given back while refusals are on their way counts too
                try:
                    if not first.turn.done():
                        sandbox = await self._ask_all(first.limits, first.priority)
                    if sandbox is not None and first.turn.done():  # who asked has left
                        await sandbox.close()
                except (SandboxError, ConfigError, ValueError) as error:
                    if not first.turn.done():
                        first.turn.set_exception(error)
                if sandbox is not None and not first.turn.done():
                    first.turn.set_result(sandbox)
                    pause = FIRST_PAUSE_S
                elif not first.turn.done() and self._silent_for(first.since) >= UNREACHABLE_S:
                    first.turn.set_exception(self._refusal(f"no node has answered for {UNREACHABLE_S:g} s"))
                if first.turn.done():
                    self._line.remove(first)
                    heapq.heapify(self._line)
                else:
                    await self._pause(pause)
                    pause = min(2 * pause, LAST_PAUSE_S)
        finally:
            self._asking = None
            for waiter in self._line:  # only when this was cancelled by `close`, or fails
                if not waiter.turn.done():
                    waiter.turn.set_exception(SandboxRefused("closed", "the pool asks no node any more"))

    def _silent_for(self, since: float) -> float:
        """Seconds of the time since then in which no node answered."""
        if self._silent_since is None:
            return 0.0
        return asyncio.get_running_loop().time() - max(since, self._silent_since)

    async def _pause(self, seconds: float) -> None:
        """A while, or until one of ours is given back. Jitter keeps replicas apart."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._room.wait(), seconds * self._rng.uniform(0.5, 1.0))


async def _give_back(asking: asyncio.Task[RemoteSandbox]) -> None:
    with contextlib.suppress(SandboxError, ValueError):
        await (await asking).close()


def _is_url(url: str) -> bool:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parsed.scheme in {"http", "https"} and bool(parsed.host)
