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
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from agents.sandbox.admission import Cause, PoolSettings
from agents.sandbox.base import Limits, Priority, Sandbox, SandboxFactory, Snapshot
from agents.sandbox.lease import Held, How, Lease
from agents.sandbox.metrics import Metrics, Tally
from agents.sandbox.room import Room
from agents.sandbox.signals import Reading, Signals
from agents.sandbox.spares import Spares
from schemas.errors import SandboxDied, SandboxError, SandboxLost, SandboxRefused

__all__ = ["Lease", "Metrics", "Pool", "PoolSettings"]

log = logging.getLogger(__name__)

MAKING = 8
"""Sandboxes made at once. More do not come sooner, and would be decided on before the host shows what they cost."""
CLOSING = 64
"""Sandboxes closed at once, as each may take a descriptor while it closes."""
SILENCE_S = 15.0
"""After so long without anybody let in the log says what is waited for."""
RECHECK_S = 0.1
"""How often the host is looked at while somebody waits."""
SWEEP_S = 5.0
"""How often leases and spares are looked at for being unused, expired or too old."""
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
        self._room = Room(settings, signals or Signals())
        self._queues: dict[Priority, dict[_Request, None]] = {"latency": {}, "background": {}}
        """In the order of service, each in the order of asking. (Dictionaries: a waiter may leave from anywhere.)"""
        self._let_in_at, self._said = -math.inf, False
        """When somebody was let in last, and whether it was said since then why nobody is."""
        self._making = 0
        """Let in and not in `_live` yet."""
        self._none_making = asyncio.Event()
        self._none_making.set()
        self._live: dict[Held, None] = {}
        """Leased, or being closed."""
        self._spares = Spares(settings.spares)
        self._filling: asyncio.Task[None] | None = None
        self._closing = asyncio.Semaphore(CLOSING)
        self._tally = Tally()
        self._recheck: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._shutting: asyncio.Task[None] | None = None

    async def lease(self, limits: Limits, priority: Priority = "latency") -> Lease:
        """A fresh sandbox, when there is room for it.

        Raises SandboxRefused: at once for limits above all that this host has; once first in line, for limits above all
        that it was ever seen to have free (room.py); else after `wait_s`, or when the pool is closed. What the factory
        raises comes through. Who is cancelled while waiting leaves nothing behind.
        """
        self._spares.follow((limits, priority))
        self._retire(self._spares.unfit())
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
        return self._room.shortage(limits, priority, self._making)

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
        self._retire(self._spares.oldest(len(self._spares)))
        closing = [self._end(held, SandboxLost(f"the sandbox is gone: {CLOSED[1]}"), "closed") for held in self._live]
        if closing:
            await asyncio.wait(closing)
        await self._factory.close()
        self._room.close()
        for task in closing:
            task.result()  # raises what went wrong, now that everything was tried

    # Waiting

    async def _obtain(self, limits: Limits, priority: Priority, snapshot: Snapshot | None) -> Lease:
        loop = asyncio.get_running_loop()
        cause = CLOSED if self._shutting is not None else self._room.impossible(limits)
        if cause is not None:
            raise self._refused(cause)
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
        self._tally.lease()
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
                elif (hopeless := self._room.hopeless(request.limits)) is not None:
                    self._refuse(request, hopeless)
                elif now >= request.since + wait_s:
                    self._refuse(request, short)
                else:
                    blocked = short
                    self._say_why(short, now - max(request.since, self._let_in_at))
                    break
        self._refill()

    def _say_why(self, cause: Cause, waited_s: float) -> None:
        """Once in a while that nobody is let in: a run that only waits looks as one that hangs."""
        if waited_s >= SILENCE_S and not self._said:
            self._said = True
            log.warning("nobody was let in for %.0f s, waiting for a sandbox: %s", waited_s, cause[1])

    def _admit(self, request: _Request) -> None:
        self._dequeue(request)
        self._let_in_at, self._said = asyncio.get_running_loop().time(), False
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
        while (over := len(self._live) + self._making + len(self._spares) - self._settings.max_live) > 0:
            closing = [held.closing for held in self._live if held.closing is not None]
            closing += self._retire(self._spares.oldest(over - len(closing)))
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
        self._note(held, why, how)
        return self._release(held)

    def _note(self, held: Held, why: SandboxDied, how: How) -> None:
        if held.end is None:
            held.end = why
            self._tally.ended(how, why)

    def _release(self, held: Held) -> asyncio.Task[None]:
        if held.closing is None:
            held.closing = asyncio.create_task(self._close(held))
        return held.closing

    async def _close(self, held: Held) -> None:
        try:
            async with self._closing:
                if held.end is None:  # the sweep found it dead
                    self._note(held, await _why(held.sandbox), "died")
                await held.sandbox.close()
        finally:
            del self._live[held]
            if held.since is not None:
                self._tally.give_back(held.priority, asyncio.get_running_loop().time() - held.since)
            self._pump()

    # Spares

    def _take_spare(self, request: _Request) -> Held | None:
        if request.snapshot is not None:
            return None
        self._retire(self._spares.unfit())
        return self._spares.take((request.limits, request.priority))

    def _keep(self, spare: Held) -> None:
        self._spares.keep(spare)
        self._retire(self._spares.unfit())

    def _retire(self, spares: list[Held]) -> list[asyncio.Task[None]]:
        """Close what was taken out of the spares. Until they are closed they count as live."""
        self._live.update(dict.fromkeys(spares))
        why = SandboxDied("the sandbox is gone: a spare that nobody wants")
        return [self._end(spare, why, "closed") for spare in spares]

    def _refill(self) -> None:
        """Make one more spare, while nobody waits for anything and there is room."""
        spares, wanted = len(self._spares), self._spares.wanted
        if wanted is None or self._spares.failed or self._making or any(self._queues.values()):
            return
        if spares >= self._spares.most or len(self._live) + spares >= self._settings.max_live:
            return
        if self.refusal(*wanted) is None:
            self._making += 1
            self._none_making.clear()
            self._filling = asyncio.create_task(self._fill(*wanted))

    async def _fill(self, limits: Limits, priority: Priority) -> None:
        try:
            self._keep(self._born(await self._factory.open(limits, priority), limits, priority))
        except BaseException as error:
            self._spares.failed = True
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
                self._release(held)  # which asks the sandbox whether it expired or what
            elif now >= held.used + self._settings.idle_s:
                text = f"the sandbox is gone: reclaimed after {self._settings.idle_s:g} s without use"
                self._end(held, SandboxLost(text), "reclaimed")
        self._retire(self._spares.unfit())
        self._pump()


async def _why(dead: Sandbox) -> SandboxDied:
    try:
        await dead.collect([])
    except SandboxDied as error:
        return error
    return SandboxDied("the sandbox is gone")
