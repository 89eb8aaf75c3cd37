"""Puts a task's workspace into a sandbox, and decides by running whether it is solved. Called by loop and admission."""

import base64
import json
import sqlite3

from agents.sandbox.base import VERIFY, WORK, Sandbox
from schemas.errors import InputError
from schemas.task import FileSpec, Task


def workspace_bytes(spec: FileSpec) -> bytes:
    """The content of a file. InputError when it is not what its encoding says."""
    if spec.encoding == "utf8":
        return spec.content.encode("utf-8", "surrogatepass")
    if spec.encoding == "base64":
        try:
            return base64.b64decode(spec.content, validate=True)
        except ValueError as error:
            raise InputError(f"{spec.path}: not base64: {error}") from error
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(spec.content)
        return connection.serialize()
    except sqlite3.Error as error:
        raise InputError(f"{spec.path}: not an SQL script: {error}") from error
    finally:
        connection.close()


async def _put(sandbox: Sandbox, specs: list[FileSpec], root: str) -> None:
    files = {spec.path: workspace_bytes(spec) for spec in specs}
    await sandbox.put(files, root=root, executable=frozenset(spec.path for spec in specs if spec.executable))


async def prepare(sandbox: Sandbox, task: Task) -> None:
    """Write the files that the agent starts with."""
    await _put(sandbox, task.workspace, WORK)


def read_points(output: bytes, nonce: str, names: list[str]) -> dict[str, bool]:
    """Points from the last line of a verifier's output; all False when it is not exactly what was asked for."""
    nothing = dict.fromkeys(names, False)
    lines = output.decode("utf-8", "replace").strip().splitlines()
    try:
        report = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return nothing
    if not isinstance(report, dict) or set(report) != {"nonce", "points"} or report["nonce"] != nonce:
        return nothing
    points = report["points"]
    if (
        not isinstance(points, dict)
        or set(points) != set(names)
        or not all(isinstance(v, bool) for v in points.values())
    ):
        return nothing
    return {name: points[name] for name in names}


async def verify(sandbox: Sandbox, task: Task, nonce: str) -> dict[str, bool]:
    """Which points hold, by name, fail-to-pass ones first. Everything that the agent left running is ended before.

    `nonce` must be unknown to the agent. A report that is missing or garbled leaves every point False. SandboxDied
    passes through: then nothing is decided.
    """
    check = task.verification
    names = [*check.fail_to_pass, *check.pass_to_pass]
    await sandbox.kill_all()
    await _put(sandbox, check.files, VERIFY)
    result = await sandbox.run(check.command, timeout_s=check.timeout_s, stdin=nonce.encode(), cwd=WORK)
    if result.timed_out or result.dropped_bytes:
        return dict.fromkeys(names, False)
    return read_points(result.stdout, nonce, names)
