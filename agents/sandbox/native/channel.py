"""The sockets to a zygote and to PID 1s: messages with descriptors, without blocking. Called by zygote.py, sandbox.py.

The message layout is `struct message` of sandbox.h. No thread and no select(): hundreds of these live on one loop.
"""

import array
import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from schemas.errors import SandboxDied

HEAD = struct.Struct("=IIii")
MAX_MESSAGE = 192 * 1024
"""Of sandbox.h; also under the kernel's default socket buffer."""
POLL_S = 0.01


class Op(IntEnum):
    """Kinds of messages, as in sandbox.h."""

    ROOT = 1
    CREATE = 2
    EXEC = 3
    KILL = 4
    KILL_ALL = 5
    FOLDER = 6
    SEAL = 7
    BORN = 8
    READY = 9
    FAILED = 10
    EXITED = 11
    DONE = 12


@dataclass(frozen=True)
class Message:
    """One message from the other side. `descriptor` is the receiver's to close."""

    op: Op
    id: int
    a: int
    b: int
    text: str
    descriptor: int | None


class Channel:
    """One end of the socket. `on_message` is called for each message, `on_end` once when the other side is gone."""

    def __init__(self, end: socket.socket, on_message: Callable[[Message], None], on_end: Callable[[], None]) -> None:
        self._socket = end
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_end = on_end
        self._sending = asyncio.Lock()
        self._blocked: asyncio.Future[None] | None = None
        """Of who waits for room in the other side's queue."""
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._readable)

    async def send(
        self, op: Op, number: int = 0, a: int = 0, b: int = 0, data: bytes = b"", descriptors: Sequence[int] = ()
    ) -> None:
        """Send one message, waiting while the other side's queue is full. Raises SandboxDied when it is gone."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        parts = [HEAD.pack(op, number, a, b), data]
        async with self._sending:
            while True:
                if self._socket.fileno() < 0:
                    raise SandboxDied("the sandbox is closed")
                try:
                    self._socket.sendmsg(parts, rights, socket.MSG_NOSIGNAL)
                    return
                except BlockingIOError:
                    await self._writable()
                except OSError as error:
                    raise SandboxDied(f"the sandbox is gone: {error.strerror}") from error

    def shutdown(self) -> None:
        """Tell the other side that nothing more comes, which ends it, and go on listening."""
        if self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):  # it has ended
                self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Stop listening and close our end, which ends the other side too."""
        number = self._socket.fileno()
        if number >= 0:
            self._loop.remove_reader(number)
            if self._blocked is not None:
                self._loop.remove_writer(number)
                _wake(self._blocked)
            self._socket.close()

    async def _writable(self) -> None:
        self._blocked = self._loop.create_future()
        number = self._socket.fileno()
        self._loop.add_writer(number, _wake, self._blocked)
        try:
            await self._blocked
        finally:
            self._blocked = None
            if self._socket.fileno() == number:
                self._loop.remove_writer(number)

    def _readable(self) -> None:
        while self._socket.fileno() >= 0:
            try:
                data, rights, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data, rights = b"", []
            if len(data) < HEAD.size:
                self._loop.remove_reader(self._socket.fileno())
                self._on_end()
                return
            descriptor = _first_descriptor(rights)
            op, number, a, b = HEAD.unpack_from(data)
            self._on_message(Message(Op(op), number, a, b, data[HEAD.size :].decode(errors="replace"), descriptor))


def _first_descriptor(rights: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, payload in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(payload) >= 4:
            return int(array.array("i", payload[:4])[0])
    return None


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def child_ended(pid: int) -> int | None:
    """Wait for a child process of ours to end and reap it: its wait status, None when somebody else took it."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE}:
            raise
        return await _child_polled(pid)
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(watch, _wake, ended)
    try:
        await ended
        return os.waitpid(pid, os.WNOHANG)[1]  # noqa: ASYNC222  (does not wait: it has ended)
    except ChildProcessError:
        return None
    finally:
        loop.remove_reader(watch)
        os.close(watch)


async def _child_polled(pid: int) -> int | None:
    """The same without a descriptor, for a process that has none left."""
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222  (does not wait)
        except ChildProcessError:
            return None
        if ended:
            return status
        await asyncio.sleep(POLL_S)
