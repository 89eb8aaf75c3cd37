"""One native sandbox: the host's side of a PID 1 that a zygote made. Made by host.py; the contract is base.py's.

It belongs to the thread and event loop that opened it, and dies with that thread.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agents.sandbox.base import VERIFY, WORK, ExecResult, Limits, Priority
from agents.sandbox.native import files, layout
from agents.sandbox.native.cgroups import Group
from agents.sandbox.native.channel import MAX_MESSAGE, Channel, Message, Op, child_ended
from agents.sandbox.native.streams import Output, Pipes
from agents.sandbox.native.zygote import Zygote
from schemas.errors import (
    SandboxCrashed,
    SandboxDied,
    SandboxError,
    SandboxExpired,
    SandboxLost,
    SandboxUnsupported,
)

ANSWER_S = {"latency": 20.0, "background": 120.0}
"""How long PID 1 may take to make the sandbox or to answer a request before the sandbox counts as lost.
A background one waits for its turn on the processor."""
MAX_ARGUMENT = 128 * 1024 - 1
"""Of the kernel, in bytes, for one argument; a shell line is one."""
MAX_ARGUMENTS = 1000
MAX_LAYERS = 64
"""Forks of forks. Each layer costs every look-up of a file a little."""


class Layer:
    """The files of one sealed sandbox: a descriptor that is closed when nobody refers to it any more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass
class NativeSnapshot:
    """See base.py. Holds the layers' memory, not the sandbox."""

    limits: Limits
    host_id: int
    """The owner of its files on the host, who every fork must be."""
    layers: tuple[Layer, ...]
    """Top first; empty when closed."""

    async def close(self) -> None:
        """See base.py."""
        self.layers = ()


class NativeSandbox:
    """One live sandbox, see `agents.sandbox.base.Sandbox`."""

    def __init__(self, limits: Limits, priority: Priority, group: Group, layers: tuple[Layer, ...] = ()) -> None:
        loop = asyncio.get_running_loop()
        self.limits = limits
        self.priority = priority
        self.pid: int | None = None
        """Of its PID 1, on the host."""
        self.own_ids = False
        """Do commands have a user id that nothing else on the host has? False on a rootless host."""
        self.can_fork = False
        """Does this kernel let its files be forked from?"""
        self.failed_step = ""
        """Which step of making it failed, as the zygote names it."""
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when it is gone and nothing of it is left."""
        self._group = group
        self._layers = layers
        self._host_id = 0
        self._sealing: asyncio.Future[None] | None = None
        self._birth: asyncio.Future[None] | None = None
        """Of its PID 1, or of the news that there will be none. None before the zygote was asked."""
        self._kills_survived = 0
        self._answer_s = ANSWER_S[priority]
        self._ready: asyncio.Future[None] = loop.create_future()
        self._waiting: dict[tuple[Op, int], asyncio.Future[Message]] = {}
        self._background: set[Output] = set()
        self._numbers = 0
        self._gone: SandboxDied | None = None
        self._closing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(ours, self._on_message, self._on_end)

    @property
    def alive(self) -> bool:
        """See base.py."""
        return self._gone is None

    async def start(self, zygote: Zygote, host_id: int = 0) -> None:
        """Make it. Raises SandboxUnsupported with errno and step. Called once, by the factory; `close` either way."""
        groups: list[int] = []
        layers = self._layers  # kept open until they are sent, whatever happens meanwhile
        try:
            groups = self._group.join_files()
            self._birth = asyncio.get_running_loop().create_future()
            numbers = [layer.descriptor for layer in layers]
            await zygote.create(layout.create(self.limits), self._theirs.fileno(), groups, numbers, host_id)
        except OSError as error:
            raise SandboxError(f"no cgroup for the sandbox: {error}") from error
        except SandboxDied as error:
            raise SandboxLost("the sandbox is gone: its zygote has ended") from error
        finally:
            self._theirs.close()
            for descriptor in groups:
                os.close(descriptor)
        try:
            async with asyncio.timeout(self._answer_s):
                await self._ready
        except TimeoutError as error:
            raise SandboxLost(f"no sandbox after {self._answer_s:g} s") from error
        self._timer = asyncio.get_running_loop().call_later(self.limits.lifetime_s, self._expire)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        cwd: str = WORK,
        merge_stderr: bool = False,
    ) -> ExecResult:
        """See base.py. A command that the kernel would not take (too long, NUL in it) is a result with code 126."""
        self._check(changes=True)
        started = time.monotonic()
        arguments = ["bash", "-c", command] if isinstance(command, str) else list(command)
        encoded = [part.encode("utf-8", "surrogatepass") for part in (cwd, *arguments)]
        if refusal := _refusal(encoded):
            return ExecResult(126, None, b"", refusal, False, 0, 0.0)
        try:
            pipes = Pipes(self.limits.output_bytes, stdin, merge_stderr)
        except OSError as error:
            raise SandboxError(f"no pipes for a command: {error.strerror}") from error
        limit = self.limits.command_s if timeout_s is None else timeout_s
        try:
            status = await self._execute(b"".join(part + b"\0" for part in encoded), pipes, limit)
        except BaseException:
            pipes.close()
            raise
        self._background = {stream for stream in self._background | pipes.finish() if stream.open}
        code = None if status is None else os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            self._kills_survived = self._group.out_of_memory_kills()
        return ExecResult(
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            stdout=bytes(pipes.out.kept),
            stderr=b"" if merge_stderr else bytes(pipes.err.kept),
            timed_out=status is None,
            dropped_bytes=sum(stream.dropped for stream in {pipes.out, pipes.err}),
            wall_s=time.monotonic() - started,
        )

    async def put(
        self, files: Mapping[str, bytes], *, root: str = WORK, executable: frozenset[str] = frozenset()
    ) -> None:
        """See base.py. A full disk, or a folder where a file should go, is a SandboxError."""
        if root not in {WORK, VERIFY}:
            raise ValueError(f"files go below {WORK} or {VERIFY}, not {root!r}")
        self._check(changes=True)
        owner = self._host_id if root == WORK and self.own_ids else None
        _write_all(await self._folder(root), files, owner, executable)

    async def collect(self, paths: Sequence[str]) -> dict[str, bytes]:
        """See base.py. Too large is what is larger than the whole disk limit (a file can be sparse)."""
        folder = await self._folder(WORK)
        limit = self.limits.disk_mb * layout.MIB
        try:
            found = {path: files.read_below(folder, path, limit) for path in paths}
        finally:
            os.close(folder)
        return {path: data for path, data in found.items() if data is not None}

    async def kill_all(self) -> None:
        """See base.py. Commands still running end with signal 9."""
        await self._request(Op.KILL_ALL)

    async def seal(self) -> NativeSnapshot:
        """See base.py. Raises SandboxUnsupported where the kernel cannot fork files, SandboxError at 64 layers."""
        self._check()
        if not self.can_fork:
            raise SandboxUnsupported("forking a sandbox needs Linux 6.15 or newer")
        if self._sealing is None:
            if len(self._layers) >= MAX_LAYERS:
                raise SandboxError(f"a sandbox cannot be sealed {MAX_LAYERS} forks deep")
            self._sealing = asyncio.ensure_future(self._freeze())
        await asyncio.shield(self._sealing)  # one for all who ask, and it goes on when they are cancelled
        self._check()
        return NativeSnapshot(self.limits, self._host_id, self._layers)

    async def _freeze(self) -> None:
        try:
            self._layers = (Layer(_descriptor(await self._request(Op.SEAL))), *self._layers)
        except SandboxError:
            self._sealing = None
            raise

    async def close(self) -> None:
        """See base.py. Returns when every process of it is gone."""
        self.mark_gone(SandboxDied("the sandbox is gone: it is closed"))
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._tear_down())
        await asyncio.shield(self._closing)

    def mark_gone(self, why: SandboxDied) -> None:
        """Kill it. Everything that waits, or comes later, raises `why`; `close` waits for the end of its processes."""
        if self._gone is not None:
            return
        self._gone = why
        if self._closing is None:
            self._kill()
            self._closing = asyncio.ensure_future(self._tear_down())
        if self._timer is not None:
            self._timer.cancel()
        if self._birth is None or self._birth.done():
            self._channel.close()
        else:
            self._channel.shutdown()  # a PID 1 that is still to come has to be heard of
        _refuse(self._ready, why)
        for future in self._waiting.values():
            _refuse(future, why)
        self._waiting.clear()
        for stream in self._background:
            stream.close()
        self._background.clear()
        self._layers = ()

    def _kill(self) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # our own child, not reaped yet: nobody else can have the number

    async def _tear_down(self) -> None:
        try:
            if self._birth is not None and not self._birth.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._answer_s):
                        await asyncio.shield(self._birth)
                self._channel.close()
            if self.pid is not None:
                await child_ended(self.pid)  # the kernel lets it end only after everything in its pid namespace
        finally:
            self._group.remove()
            self.ended.set_result(None)

    async def _find_cause(self) -> None:
        """It has ended by itself: say by whose fault."""
        self._channel.close()
        status, kills = None, 0
        try:
            status = None if self.pid is None else await child_ended(self.pid)
            kills = self._group.out_of_memory_kills() - self._kills_survived
        finally:
            self.mark_gone(_cause(status, kills))
            self._group.remove()
            self.ended.set_result(None)

    def _expire(self) -> None:
        self.mark_gone(SandboxExpired(f"the sandbox is gone: its {self.limits.lifetime_s:g} s are over"))

    def _check(self, *, changes: bool = False) -> None:
        if self._gone is not None:
            raise self._gone
        if changes and self._sealing is not None:
            raise SandboxError("the sandbox is sealed: only its forks can change anything")

    def _on_end(self) -> None:
        if self._birth is not None and not self._birth.done():
            self._birth.set_result(None)
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._find_cause())

    def _on_message(self, message: Message) -> None:
        if message.op is Op.BORN:
            self.pid, self.own_ids, self._host_id = message.a, bool(message.id), message.b
            if self._birth is not None and not self._birth.done():
                self._birth.set_result(None)
            if self._gone is not None:
                self._kill()
        elif message.op is Op.READY and not self._ready.done():
            self.can_fork = bool(message.a)
            self._ready.set_result(None)
        elif message.op is Op.FAILED and not self._ready.done():
            self.failed_step = message.text
            self._ready.set_exception(layout.unsupported(message.a, message.text))
        waiting = self._waiting.pop((message.op, message.id), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        elif message.descriptor is not None:  # whoever asked was cancelled
            os.close(message.descriptor)

    async def _send(self, op: Op, number: int, a: int = 0, data: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        try:
            async with asyncio.timeout(self._answer_s):
                try:
                    await self._channel.send(op, number, a, data=data, descriptors=descriptors)
                except SandboxDied:
                    await asyncio.shield(self.ended)  # which says why
        except TimeoutError as error:
            raise self._give_up() from error
        self._check()

    def _expect(self, op: Op, number: int) -> asyncio.Future[Message]:
        return self._waiting.setdefault((op, number), asyncio.get_running_loop().create_future())

    async def _request(self, op: Op, number: int | None = None, a: int = 0) -> Message:
        """Ask PID 1 for something and wait for its answer. One that does not answer is killed: SandboxLost."""
        self._check()
        if number is None:
            self._numbers += 1
            number = self._numbers
        done = self._expect(Op.DONE, number)
        await self._send(op, number, a)
        try:
            async with asyncio.timeout(self._answer_s):
                return await done
        except TimeoutError as error:
            raise self._give_up() from error

    def _give_up(self) -> SandboxDied:
        """It does not answer. Not proven to be the agent's doing: the host may be too busy."""
        self.mark_gone(SandboxLost(f"the sandbox is gone: no answer in {self._answer_s:g} s"))
        return self._gone or SandboxDied("the sandbox is gone")

    async def _folder(self, root: str) -> int:
        return _descriptor(await self._request(Op.FOLDER, a=int(root == VERIFY)))

    async def _execute(self, data: bytes, pipes: Pipes, limit_s: float) -> int | None:
        """Start it and wait for its end: the wait status, or None after its tree was killed at `limit_s`."""
        self._numbers += 1
        number = self._numbers
        ended = self._expect(Op.EXITED, number)
        await self._send(Op.EXEC, number, data=data, descriptors=pipes.command_ends)
        pipes.started()
        try:
            done, _ = await asyncio.wait([ended], timeout=limit_s)
            if done:
                return ended.result().a
            await self._request(Op.KILL, number)
            return None
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxDied):
                await self._request(Op.KILL, number)
            raise


def _cause(status: int | None, out_of_memory_kills: int) -> SandboxDied:
    """Whose fault the end of a PID 1 is, by its wait status."""
    if out_of_memory_kills:
        return SandboxCrashed("the sandbox is gone: it ran out of memory")
    if status is None:
        return SandboxLost("the sandbox is gone: it has ended before it was there")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return SandboxLost("the sandbox is gone: its PID 1 was killed from outside")
    return SandboxCrashed(f"the sandbox is gone: its PID 1 has ended with wait status {status}")


def _refuse(future: asyncio.Future, why: SandboxDied) -> None:
    if not future.done():
        future.set_exception(why)
        future.exception()  # seen: nobody may be waiting for it


def _descriptor(message: Message) -> int:
    if message.descriptor is None:
        raise SandboxError("the sandbox gave no descriptor of its files; this process may have too many open")
    return message.descriptor


def _refusal(encoded: Sequence[bytes]) -> bytes:
    """Why the kernel would not take these arguments, as a shell would say it, or nothing."""
    if any(b"\0" in part for part in encoded):
        return b"sandbox: a NUL byte in the command\n"
    too_long = any(len(part) > MAX_ARGUMENT for part in encoded) or len(encoded) > MAX_ARGUMENTS
    if too_long or sum(map(len, encoded)) + len(encoded) > MAX_MESSAGE - 64:
        return b"sandbox: Argument list too long\n"
    return b""


def _write_all(folder: int, contents: Mapping[str, bytes], owner: int | None, executable: frozenset[str]) -> None:
    try:
        for path in contents:
            files.parts_below(path)
        for path, data in contents.items():
            try:
                files.write_below(folder, path, data, owner=owner, executable=path in executable)
            except OSError as error:
                raise SandboxError(f"cannot write {path!r} into the sandbox: {error.strerror}") from error
    finally:
        os.close(folder)
