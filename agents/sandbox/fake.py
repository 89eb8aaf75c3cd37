"""A scripted sandbox for tests of what stands above it: files in memory, commands answered from a script.

`FakeFactory({"ls": ok(b"a.txt\n")})` answers the command `ls`; a reply may also be a function of the sandbox, which can
look at and change its files. A command that the script does not know is an error of the test, not a result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from agents.sandbox.base import VERIFY, WORK, ExecResult, Limits, Priority, Snapshot
from schemas.errors import SandboxDied, SandboxError


def ok(stdout: bytes = b"", stderr: bytes = b"") -> ExecResult:
    """A command that ended with 0."""
    return ExecResult(0, None, stdout, stderr, timed_out=False, dropped_bytes=0, wall_s=0.0)


def failed(exit_code: int = 1, stdout: bytes = b"", stderr: bytes = b"") -> ExecResult:
    """A command that ended with another code."""
    return ExecResult(exit_code, None, stdout, stderr, timed_out=False, dropped_bytes=0, wall_s=0.0)


def timed_out(stdout: bytes = b"") -> ExecResult:
    """A command that ran past its wall time."""
    return ExecResult(None, None, stdout, b"", timed_out=True, dropped_bytes=0, wall_s=0.0)


@dataclass(frozen=True)
class Call:
    """One command that was run, with everything that came with it."""

    command: str | tuple[str, ...]
    stdin: bytes
    cwd: str
    timeout_s: float | None


@dataclass(frozen=True)
class FakeSnapshot:
    """Files of a sealed scripted sandbox."""

    limits: Limits
    files: Mapping[str, bytes]

    async def close(self) -> None:
        """Nothing to free."""


class FakeSandbox:
    """One scripted sandbox. `files` maps absolute paths to contents; `calls` is what was run, in order.

    A test makes it die by setting `gone` to the SandboxDied that everything shall raise from then on.
    """

    def __init__(
        self, script: "Script", limits: Limits, priority: Priority = "latency", files: Mapping[str, bytes] | None = None
    ) -> None:
        self.script = script
        self.limits = limits
        self.priority = priority
        self.files: dict[str, bytes] = dict(files or {})
        self.sealed = False
        self.gone: SandboxDied | None = None
        self.calls: list[Call] = []
        self.kills = 0
        self.closed = False

    @property
    def alive(self) -> bool:
        """Neither closed nor gone."""
        return not self.closed and self.gone is None

    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        cwd: str = WORK,
        merge_stderr: bool = False,
    ) -> ExecResult:
        """The scripted reply; `merge_stderr` appends its stderr to its stdout."""
        self._check(changes=True)
        call = Call(command if isinstance(command, str) else tuple(command), stdin, cwd, timeout_s)
        self.calls.append(call)
        result = self._answer(call)
        if not merge_stderr:
            return result
        return ExecResult(
            result.exit_code,
            result.signal,
            result.stdout + result.stderr,
            b"",
            result.timed_out,
            result.dropped_bytes,
            result.wall_s,
        )

    async def put(
        self, files: Mapping[str, bytes], *, root: str = WORK, executable: frozenset[str] = frozenset()
    ) -> None:
        """Keep files in memory. Raises ValueError for another root or a path that would leave it."""
        self._check(changes=True)
        if root not in {WORK, VERIFY}:
            raise ValueError(f"files go below {WORK} or {VERIFY}, not {root!r}")
        for path in files:
            if path.startswith("/") or not PurePosixPath(path).parts or ".." in PurePosixPath(path).parts:
                raise ValueError(f"{path!r} is not a relative path that stays below the root")
        self.files.update({f"{root}/{PurePosixPath(path)}": data for path, data in files.items()})

    async def collect(self, paths: Sequence[str]) -> dict[str, bytes]:
        """What is in memory below WORK."""
        self._check()
        places = {path: f"{WORK}/{PurePosixPath(path)}" for path in paths if ".." not in PurePosixPath(path).parts}
        return {path: self.files[place] for path, place in places.items() if place in self.files}

    async def kill_all(self) -> None:
        """Counts, in `kills`."""
        self._check()
        self.kills += 1

    async def seal(self) -> FakeSnapshot:
        """The files below WORK, as they are now."""
        self._check()
        self.sealed = True
        below = {path: data for path, data in self.files.items() if path.startswith(f"{WORK}/")}
        return FakeSnapshot(self.limits, below)

    async def close(self) -> None:
        """Nothing works afterwards."""
        self.closed = True

    def _check(self, *, changes: bool = False) -> None:
        if self.gone is not None:
            raise self.gone
        if self.closed:
            raise SandboxDied("the sandbox is gone: it is closed")
        if changes and self.sealed:
            raise SandboxError("the sandbox is sealed")

    def _answer(self, call: Call) -> ExecResult:
        reply = self.script(self, call) if callable(self.script) else self.script.get(call.command)
        if reply is None:
            raise SandboxError(f"the script has no reply to {call.command!r}")
        return reply if isinstance(reply, ExecResult) else reply(self, call)


Reply = ExecResult | Callable[[FakeSandbox, Call], ExecResult]
Script = Mapping[str | tuple[str, ...], Reply] | Callable[[FakeSandbox, Call], Reply | None]
"""Replies by command, or a function that gives the reply (None: it does not know the command)."""


class FakeFactory:
    """Makes scripted sandboxes and remembers them in `opened`."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.opened: list[FakeSandbox] = []

    async def open(self, limits: Limits, priority: Priority = "latency") -> FakeSandbox:
        """A fresh one with no files."""
        return self._keep(FakeSandbox(self.script, limits, priority))

    async def fork(self, snapshot: Snapshot, priority: Priority = "latency") -> FakeSandbox:
        """One with the snapshot's files."""
        if not isinstance(snapshot, FakeSnapshot):
            raise TypeError(f"a fake forks fake snapshots, not {type(snapshot).__name__}")
        return self._keep(FakeSandbox(self.script, snapshot.limits, priority, snapshot.files))

    async def close(self) -> None:
        """Closes all that it opened."""
        for sandbox in self.opened:
            await sandbox.close()

    def _keep(self, sandbox: FakeSandbox) -> FakeSandbox:
        self.opened.append(sandbox)
        return sandbox
