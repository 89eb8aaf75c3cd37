"""The native sandbox: commands in kernel namespaces of their own, one process per idle sandbox, no thread.

`NativeFactory().open(limits)` makes one; the contract is base.py's. What it isolates and what not: docs/sandbox.md.
A sandbox belongs to the thread and event loop that opened it, and dies with that thread.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agents.sandbox.base import VERIFY, WORK, ExecResult, Limits
from agents.sandbox.native import build, cgroups, files, layout
from agents.sandbox.native.channel import MAX_MESSAGE, Channel, Message, Op, child_ended
from agents.sandbox.native.streams import Output, Pipes
from schemas.errors import SandboxDied, SandboxError, SandboxUnsupported

ANSWER_S = 20.0
"""How long PID 1 may take to make the sandbox or to answer a request before the sandbox counts as dead."""
MAX_ARGUMENT = 128 * 1024 - 1
"""Of the kernel, in bytes, for one argument; a shell line is one."""
MAX_ARGUMENTS = 1000
SOCKET_IN_HELPER = 3


class NativeSandbox:
    """One live sandbox, see `agents.sandbox.base.Sandbox`. Made by `NativeFactory.open`."""

    def __init__(self, limits: Limits, groups: Sequence[Path] = ()) -> None:
        loop = asyncio.get_running_loop()
        self.limits = limits
        self.pid: int | None = None
        """Of its PID 1, on the host."""
        self.own_ids = False
        """Do commands have a user id that nothing else on the host has? False on a rootless host."""
        self.failed_step = ""
        """Which step of making it failed, as the helper names it."""
        self._groups = list(groups)
        self._owner: int | None = None
        self._ready: asyncio.Future[None] = loop.create_future()
        self._waiting: dict[tuple[Op, int], asyncio.Future[Message]] = {}
        self._background: set[Output] = set()
        self._numbers = 0
        self._gone = ""
        self._closing: asyncio.Future[None] | None = None
        self._end, self._helper_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(self._end, self._on_message, lambda: self._mark_gone("its PID 1 has ended"))

    async def start(self, helper: Path) -> None:
        """Make it, or raise SandboxUnsupported with errno and step. Called once, by the factory; `close` either way."""
        try:
            pid = _spawn(helper, self._helper_end.fileno())
        except OSError as error:
            raise SandboxUnsupported(error.errno, f"starting the helper: {error.strerror}") from error
        finally:
            self._helper_end.close()
        try:
            fields = [*(str(group / "cgroup.procs") for group in self._groups), *layout.steps(self.limits)]
            await self._channel.send(Op.SPEC, a=len(self._groups), data=layout.encode(fields))
            async with asyncio.timeout(ANSWER_S):
                await self._ready
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it may hang; not reaped yet, so the number is still its own
            if isinstance(error, TimeoutError):
                raise SandboxDied(f"no sandbox after {ANSWER_S:g} s") from error
            raise
        finally:
            await child_ended(pid)

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
        self._check()
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
        _write_all(await self._folder(root), files, self._owner if root == WORK else None, executable)

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

    async def close(self) -> None:
        """See base.py. Returns when every process of it is gone."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._tear_down())
        await asyncio.shield(self._closing)

    async def _tear_down(self) -> None:
        self._mark_gone("it is closed")
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # our own child, not reaped yet: nobody else can have the number
            await child_ended(self.pid)
        cgroups.remove(self._groups)

    def _check(self) -> None:
        if self._gone:
            raise SandboxDied(f"the sandbox is gone: {self._gone}")

    def _mark_gone(self, why: str) -> None:
        self._gone = self._gone or why
        self._channel.close()
        self._helper_end.close()
        _refuse(self._ready, self._gone)
        for future in self._waiting.values():
            _refuse(future, self._gone)
        self._waiting.clear()
        for stream in self._background:
            stream.close()
        self._background.clear()

    def _on_message(self, message: Message) -> None:
        if message.op is Op.BORN:
            self.pid, self.own_ids = message.a, bool(message.id)
            self._owner = message.b if self.own_ids else None
        elif message.op is Op.READY and not self._ready.done():
            self._ready.set_result(None)
        elif message.op is Op.FAILED and not self._ready.done():
            self.failed_step = message.text
            text = f"making a sandbox failed at {message.text!r}: {os.strerror(message.a)}"
            self._ready.set_exception(SandboxUnsupported(message.a, text))
        waiting = self._waiting.pop((message.op, message.id), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        elif message.descriptor is not None:  # whoever asked was cancelled
            os.close(message.descriptor)

    def _expect(self, op: Op, number: int) -> asyncio.Future[Message]:
        return self._waiting.setdefault((op, number), asyncio.get_running_loop().create_future())

    async def _request(self, op: Op, number: int | None = None, a: int = 0) -> Message:
        """Ask PID 1 for something and wait for its answer. One that does not answer is killed: SandboxDied."""
        self._check()
        if number is None:
            self._numbers += 1
            number = self._numbers
        done = self._expect(Op.DONE, number)
        await self._channel.send(op, number, a)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await done
        except TimeoutError as error:
            self._mark_gone(f"no answer in {ANSWER_S:g} s")
            await self.close()
            raise SandboxDied(f"the sandbox is gone: {self._gone}") from error

    async def _folder(self, root: str) -> int:
        message = await self._request(Op.FOLDER, a=int(root == VERIFY))
        if message.descriptor is None:
            raise SandboxError(f"the sandbox gave no descriptor of {root}; this process may have too many open files")
        return message.descriptor

    async def _execute(self, data: bytes, pipes: Pipes, limit_s: float) -> int | None:
        """Start it and wait for its end: the wait status, or None after its tree was killed at `limit_s`."""
        self._numbers += 1
        number = self._numbers
        ended = self._expect(Op.EXITED, number)
        await self._channel.send(Op.EXEC, number, data=data, descriptors=pipes.command_ends)
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


class NativeFactory:
    """Makes native sandboxes. Cheap to make; compiles the helper when the first sandbox is opened."""

    def __init__(self) -> None:
        self.groups = cgroups.find()
        """Which cgroups sandboxes get; `version` 0 when none, after the first `open` for certain."""
        self._groups_work = False

    async def open(self, limits: Limits) -> NativeSandbox:
        """A fresh sandbox. Raises SandboxUnsupported, with errno and the step that failed, on a host that cannot."""
        helper = await asyncio.to_thread(build.helper)
        sandbox = NativeSandbox(limits, self._make_groups(limits))
        try:
            await sandbox.start(helper)
        except SandboxUnsupported as error:
            await sandbox.close()
            if sandbox.failed_step == "cgroup" and not self._groups_work:
                # Known with the first attempt only (systemd lets a user make a group but not move into it).
                self.groups = cgroups.Cgroups(0, (), error.strerror or "")
                return await self.open(limits)
            raise
        except BaseException:
            await sandbox.close()
            raise
        self._groups_work = True
        return sandbox

    def _make_groups(self, limits: Limits) -> list[Path]:
        if not self.groups.version:
            return []
        try:
            if not self._groups_work:
                cgroups.sweep(self.groups)
            return cgroups.create(self.groups, limits)
        except OSError as error:
            if self._groups_work:
                raise SandboxError(f"no cgroup for the sandbox: {error}") from error
            self.groups = cgroups.Cgroups(0, (), str(error))
            return []


def _spawn(helper: Path, end: int) -> int:
    """Start the helper with its end of the socket. By vfork: quick however much memory this process has."""
    actions = [(os.POSIX_SPAWN_DUP2, end, SOCKET_IN_HELPER)]
    return os.posix_spawn(helper, ["trajmill-sandbox"], {}, file_actions=actions)


def _refuse(future: asyncio.Future, why: str) -> None:
    if not future.done():
        future.set_exception(SandboxDied(f"the sandbox is gone: {why}"))
        future.exception()  # seen: nobody may be waiting for it


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
