"""A sandbox and a snapshot on another machine, as their holder sees them. Made by client.py."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from agents.sandbox.base import VERIFY, WORK, ExecResult, Limits
from agents.sandbox.node import wire
from agents.sandbox.node.link import SLOWEST, Link
from schemas.errors import SandboxDied, SandboxLost

Answer = TypeVar("Answer", bound=wire.Wire)


class RemoteSnapshot:
    """See `base.Snapshot`. It stays on its node, and so do its forks."""

    def __init__(self, link: Link, name: str, limits: Limits) -> None:
        self.link = link
        self.name = name
        self.limits = limits
        self.gone: SandboxDied | None = None
        link.snapshots[name] = self

    def lose(self, error: SandboxDied) -> None:
        """Every use raises this from now on."""
        self.gone = self.gone or error

    async def close(self) -> None:
        """See base.py. On a node that does not answer it expires."""
        if self.link.snapshots.pop(self.name, None) is not None:
            self.lose(SandboxDied("the snapshot is closed"))
            with contextlib.suppress(SandboxLost):
                await self.link.call("/free", wire.OfSnapshot(snapshot=self.name), wire.Done)


class RemoteSandbox:
    """See `base.Sandbox`. `closed` is called once, when there is room on the node again."""

    def __init__(self, link: Link, name: str, limits: Limits, closed: Callable[[], None]) -> None:
        self.link = link
        self.name = name
        self.limits = limits
        self._closed = closed
        self._gone: SandboxDied | None = None
        self._closing: asyncio.Task[None] | None = None
        link.leases[name] = self

    @property
    def alive(self) -> bool:
        """False once it is known to be gone."""
        return self._gone is None

    def lose(self, error: SandboxDied) -> None:
        """Every use raises this from now on."""
        self._gone = self._gone or error

    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        cwd: str = WORK,
        merge_stderr: bool = False,
    ) -> ExecResult:
        """See base.py. Sent once: a command whose answer is lost may have run, so the sandbox is lost with it."""
        asked = wire.Run(
            lease=self.name,
            command=wire.to_command(command),
            timeout_s=timeout_s,
            stdin=stdin,
            cwd=wire.to_bytes(cwd),
            merge_stderr=merge_stderr,
        )
        limit_s = self.limits.command_s if timeout_s is None else timeout_s
        return (await self._call("/run", asked, wire.Ran, limit_s)).result

    async def put(
        self, files: Mapping[str, bytes], *, root: str = WORK, executable: frozenset[str] = frozenset()
    ) -> None:
        """See base.py."""
        if root not in {WORK, VERIFY}:
            raise ValueError(f"files go below {WORK} or {VERIFY}, not {root!r}")
        sent = [wire.File(path=wire.to_bytes(p), data=data, executable=p in executable) for p, data in files.items()]
        await self._call("/put", wire.Put(lease=self.name, files=sent, root=root), wire.Done)

    async def collect(self, paths: Sequence[str]) -> dict[str, bytes]:
        """See base.py."""
        asked = wire.Collect(lease=self.name, paths=[wire.to_bytes(path) for path in paths])
        files = (await self._call("/collect", asked, wire.Collected, wire.MAX_BODY / SLOWEST)).files
        return {wire.to_text(file.path): file.data for file in files}

    async def kill_all(self) -> None:
        """See base.py."""
        await self._call("/kill_all", wire.OfLease(lease=self.name), wire.Done)

    async def seal(self) -> RemoteSnapshot:
        """See base.py. `Nodes.fork` makes its forks on the same node."""
        sealed = await self._call("/seal", wire.OfLease(lease=self.name), wire.Sealed)
        return RemoteSnapshot(self.link, sealed.snapshot, self.limits)

    async def close(self) -> None:
        """See base.py. On a node that does not answer it expires. Goes on when the caller is cancelled."""
        if self._closing is None:
            held = self.link.leases.pop(self.name, None) is not None
            self.lose(SandboxDied("the sandbox is gone: its lease is closed"))
            self._closing = asyncio.create_task(self._give_back(held))
        await asyncio.shield(self._closing)

    async def _give_back(self, held: bool) -> None:
        if held:
            with contextlib.suppress(SandboxLost):
                await self.link.call("/close", wire.OfLease(lease=self.name), wire.Done)
        self.link.placed -= 1
        self._closed()

    async def _call(self, path: str, body: wire.Wire, answer: type[Answer], more_s: float = 0.0) -> Answer:
        if self._gone is not None:
            raise again(self._gone)
        try:
            return await self.link.call(path, body, answer, more_s)
        except SandboxDied as error:
            self.lose(error)
            if self._gone is None or self._gone is error:
                raise
            raise again(self._gone) from error  # it was ended under this use: say by whom


def again(error: SandboxDied) -> SandboxDied:
    """A new one, as raising the same one twice would mix up their tracebacks."""
    return type(error)(*error.args)
