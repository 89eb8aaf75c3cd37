"""Leases the sandboxes of this host: queue, admission, warm spares, reclaiming. Made by the runtime and by node agents.

A lease is asked for, waits in the queue of its class, is let in when `refusal` has nothing against it, is made by the
task that asked (or taken from the spares) and held until its holder closes it, it dies, or it is reclaimed. Room is
given back when the sandbox is really closed, so there are never more than `max_live`.

A used sandbox never gets a second holder, however clean it looks: what the first one left in files, processes, IPC or
cgroup counters would be both a way to cheat and a reason why results depend on who came before. Making a fresh one
costs less than proving that there is nothing. So recycling is: close it, and make a spare.

One pool belongs to one event loop; nothing of it is safe to call from another thread. Its clock is the loop's.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from agents.sandbox.admission import Cause, PoolSettings, never, shortage
from agents.sandbox.base import Limits, Priority, Sandbox, SandboxFactory, Snapshot
from agents.sandbox.lease import Held, How, Lease
from agents.sandbox.metrics import Metrics, Tally
from agents.sandbox.signals import Reading, Signals
from schemas.errors import SandboxDied, SandboxError, SandboxLost, SandboxRefused

__all__ = ["Lease", "Metrics", "Pool", "PoolSettings"]

MAKING = 8
"""Sandboxes made at once. More do not come sooner, and would be decided on before the host shows what they cost."""
CLOSING = 64
"""Sandboxes closed at once, as each may take a descriptor while it closes."""
RECHECK_S = 0.1
"""How often the host is looked at while somebody waits."""
SWEEP_S = 5.0
"""How often leases and spares are looked at for being unused, expired or too old."""
SPARE_AGE = 0.1
"""The part of its lifetime that a spare may have used up when it is leased."""
CLOSED: Cause = "closed", "the pool is closed"


@dataclass(eq=False)
class _Request:
    """Somebody who waits. `turn` is done when there is room: with a spare to take, or None for making one."""

    limits: Limits
    priority: Priority
    snapshot: Snapshot | None
    since: float
    turn: asyncio.Future[Held | None]


class Pool:
    """See `base.SandboxPool`. `signals` reads the host, by default with the disk of the working folder.

    The factory, and a `Signals`, are the pool's from then on: its `close` closes them.
    """

    def __init__(
        self,
        factory: SandboxFactory,
        settings: PoolSettings = PoolSettings(),  # noqa: B008  (frozen)
        signals: Callable[[], Reading] | None = None,
    ) -> None:
        self._factory = factory
        self._settings = settings
        self._signals = signals or Signals()
        self._host = self._signals()
        self._queues: dict[Priority, dict[_Request, None]] = {"latency": {}, "background": {}}
        """In the order of service, each in the order of asking. (Dictionaries: a waiter may leave from anywhere.)"""
        self._making = 0
        """Let in and not in `_live` yet."""
        self._none_making = asyncio.Event()
        self._none_making.set()
        self._live: dict[Held, None] = {}
        """Leased, or being closed."""
        self._spares: deque[Held] = deque()
        self._wanted: tuple[Limits, Priority] | None = None
        """What spares are made for. None: nobody asked yet, or making one failed."""
        self._filling: asyncio.Task[None] | None = None
        self._closing = asyncio.Semaphore(CLOSING)
        self._tally = Tally()
        self._recheck: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._shutting: asyncio.Task[None] | None = None

    async def lease(self, limits: Limits, priority: Priority = "latency") -> Lease:
        """A fresh sandbox, when there is room for it.

        Raises SandboxRefused: at once for limits that this host can never meet, else after `wait_s`, or when the pool
        is closed. What the factory raises comes through. Who is cancelled while waiting leaves nothing behind.
        """
        if self._wanted != (limits, priority):
            self._wanted = (limits, priority)
            self._retire(list(self._spares))
        return await self._obtain(limits, priority, None)

    async def fork(self, snapshot: Snapshot, priority: Priority = "latency") -> Lease:
        """As `lease`, with the snapshot's files and limits. Never a spare."""
        return await self._obtain(snapshot.limits, priority, snapshot)

    def refusal(self, limits: Limits, priority: Priority) -> Cause | None:
        """Why one more could not be let in right now, whoever waits: a word for metrics and a message. Reads the host.

        Spares do not count against `max_live`: they make room for what is asked for.
        """
        if self._shutting is not None:
            return CLOSED
        taken = len(self._live) + self._making
        if taken >= self._settings.max_live:
            return "live", f"{taken} sandboxes live, which is all that this pool may hold"
        return shortage(self._signals(), self._settings, limits, priority, self._making)

    def metrics(self) -> Metrics:
        """The counts up to now. Call it on the pool's loop."""
        now = asyncio.get_running_loop().time()
        waiting = {priority: [request.since for request in queue] for priority, queue in self._queues.items()}
        return self._tally.look(now, waiting, self._live, self._making, len(self._spares))

    async def close(self) -> None:
        """Refuse who waits, end every sandbox, close the factory. Safe to call twice; goes on when cancelled."""
        if self._shutting is None:
            self._shutting = asyncio.create_task(self._shut())
            for queue in self._queues.values():
                for request in list(queue):
                    self._refuse(request, CLOSED)
        await asyncio.shield(self._shutting)

    async def _shut(self) -> None:
        for timer in (self._recheck, self._sweeper):
            if timer is not None:
                timer.cancel()
        await self._none_making.wait()  # whoever is making one now ends it when it is made
        self._retire(list(self._spares))
        closing = [self._end(held, SandboxLost(f"the sandbox is gone: {CLOSED[1]}"), "closed") for held in self._live]
        if closing:
            await asyncio.wait(closing)
        await self._factory.close()
        if isinstance(self._signals, Signals):
            self._signals.close()
        for task in closing:
            task.result()  # raises what went wrong, now that everything was tried

    # Waiting

    async def _obtain(self, limits: Limits, priority: Priority, snapshot: Snapshot | None) -> Lease:
        loop = asyncio.get_running_loop()
        hopeless = CLOSED if self._shutting is not None else never(self._host, self._settings, limits)
        if hopeless is not None:
            raise self._refused(hopeless)
        request = _Request(limits, priority, snapshot, loop.time(), loop.create_future())
        self._queues[priority][request] = None
        try:
            self._pump()
            held = await request.turn or await self._make(request)
        except BaseException:
            self._leave(request)
            raise
        held.since = held.used = loop.time()
        self._live[held] = None
        self._tally.peak = max(self._tally.peak, len(self._live))
        self._made()
        if self._shutting is not None:
            await asyncio.shield(self._end(held, SandboxDied("the sandbox is gone: never leased"), "closed"))
            raise self._refused(CLOSED)
        return Lease(held, self._end)

    def _pump(self) -> None:
        """Let in who can be. Called whenever that may have changed: one asks, leaves, is made or ends; time passes."""
        if self._shutting is not None:
            return
        self._arm()
        now = asyncio.get_running_loop().time()
        wait_s = math.inf if self._settings.wait_s is None else self._settings.wait_s
        blocked: Cause | None = None  # why the first in line waits: all behind it do too, lest it be overtaken for ever
        for queue in self._queues.values():
            while queue and self._making < MAKING:
                request = next(iter(queue))
                if request.turn.done():  # cancelled, and its task has not run since
                    self._dequeue(request)
                elif (short := blocked or self.refusal(request.limits, request.priority)) is None:
                    self._admit(request)
                elif now >= request.since + wait_s:
                    self._refuse(request, short)
                else:
                    blocked = short
                    break
        self._refill()

    def _admit(self, request: _Request) -> None:
        self._dequeue(request)
        self._making += 1
        self._none_making.clear()
        request.turn.set_result(self._take_spare(request))

    def _refuse(self, request: _Request, cause: Cause) -> None:
        self._dequeue(request)
        if not request.turn.done():
            request.turn.set_exception(self._refused(cause))

    def _refused(self, cause: Cause) -> SandboxRefused:
        self._tally.refused[cause[0]] += 1
        return SandboxRefused(*cause)

    def _dequeue(self, request: _Request) -> None:
        del self._queues[request.priority][request]
        self._tally.waited_s[request.priority] += asyncio.get_running_loop().time() - request.since

    def _leave(self, request: _Request) -> None:
        """It ends without a lease: give back its place in the queue, or its room and the spare in it."""
        if request in self._queues[request.priority]:
            self._dequeue(request)
            self._pump()
        elif not request.turn.cancelled() and request.turn.exception() is None:
            if spare := request.turn.result():
                self._keep(spare)
            self._made()

    # Making and ending

    async def _make(self, request: _Request) -> Held:
        while len(self._live) + self._making + len(self._spares) > self._settings.max_live:
            self._retire(list(self._spares)[:1])
            closing = [held.closing for held in self._live if held.closing is not None]
            await asyncio.wait(closing, return_when=asyncio.FIRST_COMPLETED)
        if request.snapshot is None:
            sandbox = await self._factory.open(request.limits, request.priority)
        else:
            sandbox = await self._factory.fork(request.snapshot, request.priority)
        return self._born(sandbox, request.limits, request.priority)

    def _born(self, sandbox: Sandbox, limits: Limits, priority: Priority) -> Held:
        now = asyncio.get_running_loop().time()
        self._tally.creation(now)
        return Held(sandbox, limits, priority, born=now)

    def _made(self) -> None:
        """One that was let in is not being made any more."""
        self._making -= 1
        if not self._making:
            self._none_making.set()
        self._pump()

    def _end(self, held: Held, why: SandboxDied, how: How) -> asyncio.Task[None]:
        if held.end is None:
            held.end = why
            self._tally.ended(how, why)
        return self._release(held)

    def _release(self, held: Held) -> asyncio.Task[None]:
        if held.closing is None:
            held.closing = asyncio.create_task(self._close(held))
        return held.closing

    async def _close(self, held: Held) -> None:
        try:
            async with self._closing:
                await held.sandbox.close()
        finally:
            del self._live[held]
            if held.since is not None:
                self._tally.held_s[held.priority] += asyncio.get_running_loop().time() - held.since
            self._pump()

    # Spares

    def _take_spare(self, request: _Request) -> Held | None:
        if request.snapshot is not None or (request.limits, request.priority) != self._wanted:
            return None
        self._retire([spare for spare in self._spares if not _fresh(spare)])
        return self._spares.popleft() if self._spares else None

    def _keep(self, spare: Held) -> None:
        self._spares.append(spare)
        if (spare.limits, spare.priority) != self._wanted:
            self._retire([spare])

    def _retire(self, spares: list[Held]) -> None:
        for spare in spares:
            self._spares.remove(spare)
            self._live[spare] = None
            self._end(spare, SandboxDied("the sandbox is gone: a spare that nobody wants"), "closed")

    def _refill(self) -> None:
        """Make one more spare, while nobody waits for anything and there is room."""
        if self._wanted is None or self._making or any(self._queues.values()):
            return
        spares = len(self._spares)
        if spares >= self._settings.spares or len(self._live) + spares >= self._settings.max_live:
            return
        if self.refusal(*self._wanted) is None:
            self._making += 1
            self._none_making.clear()
            self._filling = asyncio.create_task(self._fill(*self._wanted))

    async def _fill(self, limits: Limits, priority: Priority) -> None:
        try:
            self._keep(self._born(await self._factory.open(limits, priority), limits, priority))
        except BaseException as error:
            self._wanted = None  # no more of them until somebody asks, who then gets to see the error
            if not isinstance(error, SandboxError):
                raise
        finally:
            self._filling = None
            self._made()

    # Time

    def _arm(self) -> None:
        """Two timers, and only while there is something to look at."""
        loop = asyncio.get_running_loop()
        if self._recheck is None and any(self._queues.values()):
            self._recheck = loop.call_later(RECHECK_S, self._look_again)
        if self._sweeper is None and (self._live or self._spares):
            self._sweeper = loop.call_later(SWEEP_S, self._sweep)

    def _look_again(self) -> None:
        self._recheck = None
        self._pump()

    def _sweep(self) -> None:
        """End what is dead or not used, and spares that are dead or too old. Never under a running use."""
        self._sweeper = None
        now = asyncio.get_running_loop().time()
        for held in [held for held in self._live if held.closing is None and not held.running]:
            if not held.sandbox.alive:
                self._release(held)  # only its room: at the next use the sandbox itself says whether it expired or what
            elif now >= held.used + self._settings.idle_s:
                text = f"the sandbox is gone: reclaimed after {self._settings.idle_s:g} s without use"
                self._end(held, SandboxLost(text), "reclaimed")
        self._retire([spare for spare in self._spares if not _fresh(spare)])
        self._pump()


def _fresh(spare: Held) -> bool:
    age = asyncio.get_running_loop().time() - spare.born
    return spare.sandbox.alive and age <= SPARE_AGE * spare.limits.lifetime_s
