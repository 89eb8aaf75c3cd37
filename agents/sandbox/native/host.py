"""Native sandboxes on this host: `NativeFactory` keeps the zygotes that make them. Called by the pool and the probe.

What a sandbox isolates and what not: docs/sandbox.md. A factory belongs to the thread and event loop of its first call.
"""

import asyncio
import errno
from collections import Counter

from agents.sandbox import topology
from agents.sandbox.base import Limits, Priority, Snapshot
from agents.sandbox.native import build, cgroups
from agents.sandbox.native.sandbox import NativeSandbox, NativeSnapshot
from agents.sandbox.native.zygote import Zygote
from schemas.errors import SandboxError, SandboxLost, SandboxUnsupported

WEAKER = (
    "this host lets us limit memory for each process only, not for a whole sandbox ({why}); "
    "set sandbox.accept_process_memory_limit to run all the same"
)
CLOSING = 256
NOT_OURS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EOPNOTSUPP}
"""What the kernel says of cgroups that this process may not use, whatever it tries."""


class NativeFactory:
    """Makes native sandboxes, see `agents.sandbox.base.SandboxFactory`. Cheap to make; starts when one is opened.

    Without a memory cgroup it refuses to work unless `accept_process_memory_limit`: then `Limits.memory_mb` holds for
    each process, and all together can take `processes` times as much.
    """

    def __init__(self, *, accept_process_memory_limit: bool = False) -> None:
        self.groups = cgroups.find()
        """Which cgroups sandboxes get; `version` 0 when none, after the first `open` for certain."""
        self._accept_weaker = accept_process_memory_limit
        self._groups_work = False
        self._made = False
        self._closed = False
        self._topology: topology.Topology | None = None
        self._zygotes: dict[tuple[int | None, Priority], Zygote] = {}
        self._starting = asyncio.Lock()
        self._origin: dict[NativeSandbox, Zygote] = {}
        """Of every sandbox of which something is left."""

    async def open(self, limits: Limits, priority: Priority = "latency") -> NativeSandbox:
        """See base.py. SandboxUnsupported has errno and the step that failed."""
        return await self._make(limits, priority, None)

    async def fork(self, snapshot: Snapshot, priority: Priority = "latency") -> NativeSandbox:
        """See base.py. Raises SandboxError for a closed snapshot."""
        if not isinstance(snapshot, NativeSnapshot):
            raise TypeError(f"not a native snapshot: {type(snapshot).__name__}")
        if not snapshot.layers:
            raise SandboxError("the snapshot is closed")
        return await self._make(snapshot.limits, priority, snapshot)

    async def close(self) -> None:
        """See base.py."""
        slots = asyncio.Semaphore(CLOSING)  # each takes a descriptor while it closes

        async def close(sandbox: NativeSandbox) -> None:
            async with slots:
                await sandbox.close()

        self._closed = True
        async with self._starting:
            zygotes, self._zygotes = list(self._zygotes.values()), {}
        ended = await asyncio.gather(*map(close, list(self._origin)), return_exceptions=True)
        ended += await asyncio.gather(*(zygote.close() for zygote in zygotes), return_exceptions=True)
        cgroups.remove_classes(self.groups)
        for problem in ended:
            if isinstance(problem, BaseException):
                raise problem  # now that everything was tried

    @property
    def live(self) -> list[NativeSandbox]:
        """Those that are not gone."""
        return [sandbox for sandbox in self._origin if sandbox.alive]

    @property
    def keeps_cores_apart(self) -> bool:
        """Does the kernel keep sandboxes of different priority off one core? Known once a background one was opened."""
        return any(zygote.tagged for zygote in self._zygotes.values())

    async def _make(self, limits: Limits, priority: Priority, base: NativeSnapshot | None) -> NativeSandbox:
        zygote = await self._zygote(priority)
        group = self._group(limits, priority)
        try:
            sandbox = NativeSandbox(limits, priority, group, base.layers if base else ())
        except OSError as error:
            group.remove()
            raise SandboxError(f"no socket for a sandbox: {error.strerror}") from error
        self._origin[sandbox] = zygote
        sandbox.ended.add_done_callback(lambda _: self._origin.pop(sandbox))
        try:
            await sandbox.start(zygote, base.host_id if base else 0)
        except SandboxUnsupported as error:
            await sandbox.close()
            if sandbox.failed_step == "cgroup" and not self._groups_work and error.errno in NOT_OURS:
                # Known with the first attempt only (systemd lets a user make a group but not move into it).
                self.groups = cgroups.Cgroups(0, (), why=error.strerror or "")
                return await self._make(limits, priority, base)
            if self._made:
                raise SandboxError(str(error)) from error  # it can be done here, so it is for want of something now
            raise
        except BaseException:
            await sandbox.close()
            raise
        self._groups_work = self._made = True
        return sandbox

    async def _zygote(self, priority: Priority) -> Zygote:
        """The zygote for the next sandbox, started when there is none."""
        async with self._starting:
            if self._closed:
                raise SandboxError("the factory is closed")
            node = self._pick_node()
            key = (node.id if node else None, priority)
            if key not in self._zygotes:
                program = await asyncio.to_thread(build.zygote)
                try:
                    zygote = Zygote(node, priority, self._on_zygote_gone)
                except OSError as error:
                    raise SandboxError(f"no socket for a zygote: {error.strerror}") from error
                try:
                    await zygote.start(program)
                except BaseException:
                    await zygote.close()
                    raise
                self._zygotes[key] = zygote
            return self._zygotes[key]

    def _pick_node(self) -> topology.NumaNode | None:
        if self._topology is None:
            self._topology = topology.read()
        if len(self._topology.nodes) == 1:
            return None
        live = Counter(zygote.node.id for zygote in self._origin.values() if zygote.node)
        return topology.pick(self._topology, live)

    def _on_zygote_gone(self, zygote: Zygote) -> None:
        """A zygote takes its sandboxes with it, as failures that are nobody's doing. The next `open` starts another."""
        self._zygotes = {key: other for key, other in self._zygotes.items() if other is not zygote}
        for sandbox in [sandbox for sandbox, origin in self._origin.items() if origin is zygote]:
            sandbox.mark_gone(SandboxLost("the sandbox is gone: its zygote has ended"))

    def _group(self, limits: Limits, priority: Priority) -> cgroups.Group:
        if self.groups.version:
            try:
                if not self._groups_work:
                    cgroups.sweep(self.groups)
                return cgroups.create(self.groups, limits, priority)
            except OSError as error:
                if self._groups_work or error.errno not in NOT_OURS:
                    raise SandboxError(f"no cgroup for the sandbox: {error}") from error
                self.groups = cgroups.Cgroups(0, (), why=str(error))
        if not self._accept_weaker:
            raise SandboxUnsupported(WEAKER.format(why=self.groups.why))
        return cgroups.Group()
