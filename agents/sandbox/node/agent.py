"""What a node agent does for its clients, one method for each route of server.py.

Holders die without saying so: what one does not renew within `ttl_s` is reclaimed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from agents.sandbox.base import Priority, Snapshot
from agents.sandbox.node import wire
from agents.sandbox.node.holdings import Closable, Holdings
from agents.sandbox.node.placement import NodeReading
from agents.sandbox.pool import Lease, Pool, PoolSettings
from agents.sandbox.signals import Reading
from schemas.errors import SandboxError, SandboxRefused

TTL_S = 30.0
"""A lease or snapshot that was not renewed for so long is reclaimed."""
RESERVED_S = 3.0
"""So long after refusing a latency-sensitive lease no other is let in: longer than its asker pauses (at most 2 s)."""
log = logging.getLogger(__name__)


class Agent:
    """Each method takes a checked body and answers with one, or raises an error of schemas.errors."""

    def __init__(self, pool: Pool, settings: PoolSettings, signals: Callable[[], Reading], ttl_s: float) -> None:
        self._pool = pool
        self._settings = settings
        self._signals = signals
        self._ttl_s = ttl_s
        self._reserved = -RESERVED_S
        """Since when room is kept for latency-sensitive leases."""
        self._reclaims: set[asyncio.Task[None]] = set()
        self._leases: Holdings[Lease] = Holdings(ttl_s)
        self._snapshots: Holdings[Snapshot] = Holdings(ttl_s)

    async def lease(self, asked: wire.Lease) -> wire.Leased:
        """A sandbox, if the pool has room at this moment."""
        return await self._let_in(self._pool.lease(asked.limits, asked.priority), asked.priority)

    async def fork(self, asked: wire.Fork) -> wire.Leased:
        """The same from a snapshot."""
        with self._snapshots.use(asked.snapshot) as snapshot:
            return await self._let_in(self._pool.fork(snapshot, asked.priority), asked.priority)

    async def _let_in(self, asking: Coroutine[Any, Any, Lease], priority: Priority) -> wire.Leased:
        """Clients do not know of each other's lines: who was refused comes again later than who gives back asks."""
        now = asyncio.get_running_loop().time()
        if priority == "background" and now < self._reserved + RESERVED_S:
            asking.close()
            raise SandboxRefused("queue", "latency-sensitive leases come first")
        try:
            lease = await asking
        except SandboxRefused as error:
            if priority == "latency" and error.cause != "limits":
                self._reserved = now
            raise
        if priority == "latency":
            self._reserved = -RESERVED_S
        return wire.Leased(lease=self._leases.add(lease))

    async def run(self, asked: wire.Run) -> wire.Ran:
        """One command."""
        command = asked.command
        with self._leases.use(asked.lease) as sandbox:
            result = await sandbox.run(
                wire.to_text(command) if isinstance(command, bytes) else [wire.to_text(part) for part in command],
                timeout_s=asked.timeout_s,
                stdin=asked.stdin,
                cwd=wire.to_text(asked.cwd),
                merge_stderr=asked.merge_stderr,
            )
        return wire.Ran(result=result)

    async def put(self, asked: wire.Put) -> wire.Done:
        """Files in."""
        files = {wire.to_text(file.path): file.data for file in asked.files}
        executable = frozenset(wire.to_text(file.path) for file in asked.files if file.executable)
        with self._leases.use(asked.lease) as sandbox:
            await sandbox.put(files, root=asked.root, executable=executable)
        return wire.Done()

    async def collect(self, asked: wire.Collect) -> wire.Collected:
        """Files out, one after the other so that no more than one answer's worth is ever in memory."""
        left, files = wire.MAX_BODY * 5 // 8, []
        with self._leases.use(asked.lease) as sandbox:
            for path in asked.paths:
                for name, data in (await sandbox.collect([wire.to_text(path)])).items():
                    left -= len(data)
                    if left < 0:
                        raise SandboxError("the files are too large for one answer")
                    files.append(wire.File(path=wire.to_bytes(name), data=data))
        return wire.Collected(files=files)

    async def kill_all(self, asked: wire.OfLease) -> wire.Done:
        """See base.Sandbox."""
        with self._leases.use(asked.lease) as sandbox:
            await sandbox.kill_all()
        return wire.Done()

    async def seal(self, asked: wire.OfLease) -> wire.Sealed:
        """The snapshot has an id of its own and is renewed by it."""
        with self._leases.use(asked.lease) as sandbox:
            return wire.Sealed(snapshot=self._snapshots.add(await sandbox.seal()))

    async def close(self, asked: wire.OfLease) -> wire.Done:
        """Give the sandbox back. An id that is not here is already closed."""
        return await _close(self._leases.pop(asked.lease))

    async def free(self, asked: wire.OfSnapshot) -> wire.Done:
        """Give the snapshot up."""
        return await _close(self._snapshots.pop(asked.snapshot))

    async def renew(self, asked: wire.Renew) -> wire.Renewed:
        """The holder lives and still wants these."""
        gone = self._leases.renew(asked.leases) + self._snapshots.renew(asked.snapshots)
        for name in set(asked.leases).difference(gone):
            self._leases.get(name).renew()  # the pool's own clock
        return wire.Renewed(gone=gone, reading=self.reading())

    def reading(self) -> NodeReading:
        """What placement needs to know."""
        metrics, now = self._pool.metrics(), self._signals()
        return NodeReading(
            live=sum(metrics.live.values()) + metrics.making,
            queued=sum(metrics.queued.values()),
            max_live=self._settings.max_live,
            memory_free_mb=max(0, now.memory_mb - self._settings.free_memory_mb),
            cpu_pressure=now.cpu_pressure or 0.0,
        )

    async def reclaim_for_ever(self) -> None:
        """End what nobody renews. One that hangs while it ends holds up no other."""
        while True:
            await asyncio.sleep(self._ttl_s / 4)
            due: list[Closable] = [*self._leases.expired(), *self._snapshots.expired()]
            for thing in due:
                task = asyncio.create_task(self._reclaim(thing))
                self._reclaims.add(task)
                task.add_done_callback(self._reclaims.discard)

    async def _reclaim(self, thing: Closable) -> None:
        name, said = type(thing).__name__, "reclaimed"
        try:
            await thing.close()
        except (SandboxError, OSError) as error:
            said = f"{type(error).__name__}: {error}"
        log.warning("%s was not renewed for %g s: %s", name, self._ttl_s, said)


async def _close(thing: Closable | None) -> wire.Done:
    if thing is not None:
        await thing.close()
    return wire.Done()
