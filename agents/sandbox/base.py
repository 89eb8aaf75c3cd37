"""What a sandbox is: commands in, results out. The native one, the fake one and later remote ones keep this contract.

Who calls it: the swarm (one sandbox per episode, many commands) and the task stage (admission).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

WORK = "/work"
"""Where an agent works."""
VERIFY = "/verify"
"""Where verification files go after the agent has finished."""


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use."""

    memory_mb: int = 256
    disk_mb: int = 64
    processes: int = 64
    open_files: int = 256
    output_bytes: int = 64 * 1024
    command_s: float = 30.0


@dataclass(frozen=True)
class ExecResult:
    """How a command ended. A failing command is a result, not an error.

    `exit_code` is None when a signal ended it (`signal` says which) or when it ran past its wall time (`timed_out`).
    `stdout` and `stderr` are capped; `dropped_bytes` counts what did not fit. `wall_s` is a clock value.
    """

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    dropped_bytes: int
    wall_s: float


class Sandbox(Protocol):
    """One live sandbox. Every method raises SandboxDied when it is gone."""

    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        cwd: str = WORK,
        merge_stderr: bool = False,
    ) -> ExecResult:
        """Run a shell line (`bash -c`) or an argument vector; `merge_stderr` writes both streams to stdout in order.

        Returns when the main process exits. Children it left in the background live on until `kill_all`; after a
        timeout the command's whole tree is dead.
        """
        ...

    async def put(
        self, files: Mapping[str, bytes], *, root: str = WORK, executable: frozenset[str] = frozenset()
    ) -> None:
        """Write files below `root` (WORK or VERIFY), making folders. A path that would leave it is a ValueError."""
        ...

    async def collect(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Regular files below WORK, by relative path; what is absent, a link, a FIFO or too large is left out."""
        ...

    async def kill_all(self) -> None:
        """End every process in the sandbox but its own init, so that nothing watches what is put next."""
        ...

    async def close(self) -> None:
        """End the sandbox and free everything. Safe to call twice."""
        ...


class SandboxFactory(Protocol):
    """Makes sandboxes."""

    async def open(self, limits: Limits) -> Sandbox:
        """A fresh sandbox with an empty WORK. Raises SandboxUnsupported with the cause on a host that cannot."""
        ...
