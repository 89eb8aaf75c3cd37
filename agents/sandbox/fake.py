"""A scripted sandbox for tests of what stands above it: files in memory, commands answered from a script.

`FakeFactory({"ls": ok(b"a.txt\n")})` answers the command `ls`; a reply may also be a function of the sandbox, which can
look at and change its files. A command that the script does not know is an error of the test, not a result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from agents.sandbox.base import VERIFY, WORK, ExecResult, Limits
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


class FakeSandbox:
    """One scripted sandbox. `files` maps absolute paths to contents; `calls` is what was run, in order."""

    def __init__(self, script: "Script", limits: Limits) -> None:
        self.script = script
        self.limits = limits
        self.files: dict[str, bytes] = {}
        self.calls: list[Call] = []
        self.kills = 0
        self.closed = False

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
        self._check()
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
        self._check()
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

    async def close(self) -> None:
        """Nothing works afterwards."""
        self.closed = True

    def _check(self) -> None:
        if self.closed:
            raise SandboxDied("the sandbox is gone: it is closed")

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

    async def open(self, limits: Limits) -> FakeSandbox:
        """A fresh one with no files."""
        sandbox = FakeSandbox(self.script, limits)
        self.opened.append(sandbox)
        return sandbox
