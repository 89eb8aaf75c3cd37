"""What a sandbox is: commands in, results out. The native one, the fake one and remote ones keep this contract.

Two levels: a `SandboxFactory` makes sandboxes on this host at once; a `SandboxPool` (pool.py for this host,
node/client.py for many) decides when and where. The swarm and the task stage know pools only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

WORK = "/work"
"""Where an agent works."""
VERIFY = "/verify"
"""Where verification files go after the agent has finished."""

Priority = Literal["latency", "background"]
"""Who gets the processor first: `background` runs only where `latency` leaves it idle (SCHED_IDLE)."""


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use."""

    memory_mb: int = 256
    disk_mb: int = 64
    """/work, /tmp and /dev/shm together."""
    inodes: int = 16384
    """Files and folders in them."""
    processes: int = 64
    open_files: int = 256
    """Of one process."""
    cpu_weight: int = 100
    """Share among sandboxes of the same priority, 1 to 10000 as in cgroup v2."""
    output_bytes: int = 64 * 1024
    """Kept of each stream of a command."""
    command_s: float = 30.0
    """Wall time of one command; past it the command is killed and its result says `timed_out`."""
    lifetime_s: float = 3600.0
    """Wall time of the sandbox; past it everything raises SandboxExpired."""


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


class Snapshot(Protocol):
    """The files of a sealed sandbox, ready to be forked from. Outlives the sandbox; freed by `close`."""

    @property
    def limits(self) -> Limits:
        """Of the sealed sandbox, and of every fork."""
        ...

    async def close(self) -> None:
        """Give it up. Forks live on. Safe to call twice."""
        ...


class Sandbox(Protocol):
    """One live sandbox. Every method but `close` raises SandboxDied (by its kind) when it is gone."""

    @property
    def alive(self) -> bool:
        """False once it is known to be gone."""
        ...

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

    async def seal(self) -> Snapshot:
        """End every process and freeze the files for `fork`. Afterwards only `collect` and `close` work."""
        ...

    async def close(self) -> None:
        """End the sandbox and free everything. Safe to call twice."""
        ...


class SandboxFactory(Protocol):
    """Makes sandboxes on this host."""

    async def open(self, limits: Limits, priority: Priority = "latency") -> Sandbox:
        """A fresh sandbox with an empty WORK. Raises SandboxUnsupported with the cause on a host that cannot."""
        ...

    async def fork(self, snapshot: Snapshot, priority: Priority = "latency") -> Sandbox:
        """A sandbox that starts with the snapshot's files, whatever their size without copying them.

        What it changes is its own. Its limits are the snapshot's.
        """
        ...

    async def close(self) -> None:
        """End every sandbox it made. Safe to call twice."""
        ...


class SandboxPool(Protocol):
    """Leases sandboxes: queue, admission and placement."""

    async def lease(self, limits: Limits, priority: Priority = "latency") -> Sandbox:
        """A fresh sandbox, when there is room. Its `close` gives it back. Raises SandboxRefused with the cause."""
        ...

    async def fork(self, snapshot: Snapshot, priority: Priority = "latency") -> Sandbox:
        """As `lease`, with the snapshot's files. SandboxRefused when the node that has them is full."""
        ...

    async def close(self) -> None:
        """End every sandbox it leased. Safe to call twice."""
        ...
