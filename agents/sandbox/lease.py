"""A sandbox with a holder. Made by pool.py; holders know it as `base.Sandbox` only.

A `Held` is the pool's own record of one sandbox. The `Lease` is what the holder gets, and the pool keeps no reference
to it: a holder that forgets it lets go of the sandbox.
"""

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agents.sandbox.base import WORK, ExecResult, Limits, Priority, Sandbox, Snapshot
from schemas.errors import SandboxDied, SandboxLost


@dataclass(eq=False)
class Held:
    """One real sandbox. Times are those of the pool's event loop."""

    sandbox: Sandbox
    limits: Limits
    priority: Priority
    born: float
    since: float | None = None
    """When it was leased; None for a spare."""
    used: float = 0.0
    """When it was used last."""
    running: int = 0
    """Uses going on now."""
    end: SandboxDied | None = None
    """Why there is nothing more to use."""
    closing: asyncio.Task[None] | None = None


How = Literal["closed", "died", "reclaimed"]
"""Who ended it: its holder, itself, or the pool."""
End = Callable[[Held, SandboxDied, How], asyncio.Task[None]]
"""The pool's way to end a sandbox. The error is what later uses raise; only the first call counts."""


class Lease:
    """See `base.Sandbox`. Every use renews it; one that is not used for the pool's `idle_s` is reclaimed.

    After that, and after a death, every use raises what it raised first: SandboxCrashed, SandboxExpired or SandboxLost.
    """

    def __init__(self, held: Held, end: End) -> None:
        self._held = held
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._forgotten = weakref.finalize(self, _let_go, self._loop, held, end)
        self._forgotten.atexit = False

    @property
    def alive(self) -> bool:
        """False once it is known to be gone."""
        return self._held.end is None and self._held.sandbox.alive

    def renew(self) -> None:
        """Say that the lease is still wanted, for a holder that is only waiting."""
        self._held.used = self._loop.time()

    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        cwd: str = WORK,
        merge_stderr: bool = False,
    ) -> ExecResult:
        """See base.py."""
        with self._use() as sandbox:
            return await sandbox.run(command, timeout_s=timeout_s, stdin=stdin, cwd=cwd, merge_stderr=merge_stderr)

    async def put(
        self, files: Mapping[str, bytes], *, root: str = WORK, executable: frozenset[str] = frozenset()
    ) -> None:
        """See base.py."""
        with self._use() as sandbox:
            await sandbox.put(files, root=root, executable=executable)

    async def collect(self, paths: Sequence[str]) -> dict[str, bytes]:
        """See base.py."""
        with self._use() as sandbox:
            return await sandbox.collect(paths)

    async def kill_all(self) -> None:
        """See base.py."""
        with self._use() as sandbox:
            await sandbox.kill_all()

    async def seal(self) -> Snapshot:
        """See base.py. The snapshot is the factory's: it is no lease, and its holder closes it."""
        with self._use() as sandbox:
            return await sandbox.seal()

    async def close(self) -> None:
        """Give it back. Returns when there is room for another one; it goes on when the caller is cancelled."""
        await asyncio.shield(self._over(SandboxDied("the sandbox is gone: its lease is closed"), "closed"))

    def _over(self, why: SandboxDied, how: How) -> asyncio.Task[None]:
        """End it, and look out no more for being forgotten: the error refers to frames, and those to this lease."""
        self._forgotten.detach()
        return self._end(self._held, why, how)

    @contextlib.contextmanager
    def _use(self) -> Iterator[Sandbox]:
        held = self._held
        if held.end is not None:
            raise _again(held.end)
        held.running += 1
        try:
            yield held.sandbox
        except SandboxDied as error:
            self._over(error, "died")
            if held.end is None or held.end is error:
                raise
            raise _again(held.end) from error  # it was ended under this use: say by whom, not just that it is closed
        finally:
            held.running -= 1
            self.renew()


def _again(error: SandboxDied) -> SandboxDied:
    """A new one, as raising the same one twice would mix up their tracebacks."""
    return type(error)(*error.args)


def _let_go(loop: asyncio.AbstractEventLoop, held: Held, end: End) -> None:
    """A lease was garbage collected, on whatever thread: its loop ends the sandbox, unless that was done before."""
    with contextlib.suppress(RuntimeError):  # the loop is closed, and sandboxes die with the thread that ran it
        loop.call_soon_threadsafe(end, held, SandboxLost("the sandbox is gone: its holder forgot it"), "reclaimed")
