"""The host's side of a zygote: starts it, asks it for sandboxes, notices its end. Called by host.py.

One for each NUMA node and priority. It belongs to the thread and event loop that started it.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from agents.sandbox.base import Priority
from agents.sandbox.native import layout
from agents.sandbox.native.channel import Channel, Message, Op, child_ended
from agents.sandbox.topology import NumaNode
from schemas.errors import SandboxError, SandboxUnsupported

START_S = 20.0
SOCKET_IN_ZYGOTE = 0


class Zygote:
    """One running zygote. `on_gone` is called once when it has ended without being closed."""

    def __init__(self, node: NumaNode | None, priority: Priority, on_gone: Callable[["Zygote"], None]) -> None:
        self.node = node
        """Where it and its sandboxes run; None for anywhere."""
        self.priority = priority
        self.pid: int | None = None
        self.tagged = False
        """Does the kernel keep other priorities off the sibling hyperthreads of its sandboxes?"""
        self.gone = False
        self._on_gone = on_gone
        self._reaping: asyncio.Future[int | None] | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(ours, self._on_message, self._ended)

    async def start(self, program: Path) -> None:
        """Start it, or raise SandboxUnsupported with errno and the step that failed."""
        actions = [(os.POSIX_SPAWN_DUP2, self._theirs.fileno(), SOCKET_IN_ZYGOTE)]
        try:
            # By vfork: quick however much memory this process has.
            self.pid = os.posix_spawn(program, ["trajmill-zygote"], {}, file_actions=actions)  # noqa: ASYNC221
        except OSError as error:
            raise SandboxUnsupported(error.errno, f"starting the zygote: {error.strerror}") from error
        finally:
            self._theirs.close()
        try:
            await self._channel.send(Op.ROOT, data=layout.root(self.node, self.priority))
            async with asyncio.timeout(START_S):
                await self._ready
        except TimeoutError as error:
            raise SandboxError(f"no zygote after {START_S:g} s") from error

    async def create(self, fields: bytes, end: int, groups: Sequence[int], layers: Sequence[int], host_id: int) -> None:
        """Ask for a sandbox, which answers over the socket `end`. Raises SandboxDied when the zygote is gone."""
        descriptors = [end, *groups, *layers]
        await self._channel.send(Op.CREATE, host_id, len(groups), len(layers), fields, descriptors)

    async def close(self) -> None:
        """End it. Sandboxes live on: they are children of this process."""
        self.gone = True
        self._channel.close()
        self._theirs.close()
        if self.pid is not None and self._reaping is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # our own child, not reaped yet: nobody else can have the number
            self._reaping = asyncio.ensure_future(child_ended(self.pid))
        if self._reaping is not None:
            await asyncio.shield(self._reaping)

    def _on_message(self, message: Message) -> None:
        if self._ready.done():
            return
        if message.op is Op.READY:
            self.tagged = bool(message.a)
            self._ready.set_result(None)
        elif message.op is Op.FAILED:
            self._ready.set_exception(layout.unsupported(message.a, message.text))

    def _ended(self) -> None:
        if not self._ready.done():
            self._ready.set_exception(SandboxError("the zygote has ended while it started"))
        self._channel.close()
        if self.pid is not None and self._reaping is None:
            self._reaping = asyncio.ensure_future(child_ended(self.pid))
        if not self.gone:
            self.gone = True
            self._on_gone(self)
