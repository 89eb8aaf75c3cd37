"""Performs single actions in a sandbox. Called by the agent loop and by admission.

`submit`, `send_message` and `wait` are not of the sandbox and not handled here.
"""

import json
from dataclasses import dataclass

from agents.sandbox.base import ExecResult, Sandbox
from schemas.task import Action

SANDBOX_TOOLS = {"bash": ("command",), "read_file": ("path",), "write_file": ("path", "content")}
_WRITE = 'case $1 in */*) mkdir -p -- "${1%/*}/" || exit;; esac; cat > "$1"'


@dataclass(frozen=True)
class ActionResult:
    """What the agent sees, whether the action failed, and how long it took (seconds, a clock value)."""

    text: str
    failed: bool
    wall_s: float = 0.0


def _arguments(action: Action) -> dict[str, str]:
    """Arguments of a sandbox tool. ValueError says what is wrong with them, in words for the agent."""
    names = SANDBOX_TOOLS.get(action.tool)
    if names is None:
        raise ValueError(f"unknown tool: {action.tool}")
    try:
        given = json.loads(action.arguments_json)
    except RecursionError as error:
        raise ValueError("arguments nested too deeply") from error
    if not isinstance(given, dict) or set(given) != set(names) or not all(isinstance(v, str) for v in given.values()):
        raise ValueError(f"{action.tool} takes the text arguments {', '.join(names)}")
    line = "".join(given[name] for name in names if name != "content")
    if "\0" in line or any("\ud800" <= letter <= "\udfff" for letter in line):
        raise ValueError("a command or a path cannot hold null characters or surrogates")
    return given


def _text(result: ExecResult, timeout_s: float) -> str:
    text = (result.stdout + result.stderr).decode("utf-8", "replace")
    notes = []
    if result.dropped_bytes:
        notes.append(f"[{result.dropped_bytes} bytes dropped]")
    if result.timed_out:
        notes.append(f"[timed out after {timeout_s:g}s]")
    elif result.signal is not None:
        notes.append(f"[killed by signal {result.signal}]")
    elif result.exit_code:
        notes.append(f"[exit {result.exit_code}]")
    if text and notes and not text.endswith("\n"):
        text += "\n"
    return text + "\n".join(notes)


async def perform(sandbox: Sandbox, action: Action, timeout_s: float) -> ActionResult:
    """Run `bash`, `read_file` or `write_file`. Wrong arguments are a failed result; SandboxDied passes through."""
    try:
        arguments = _arguments(action)
    except ValueError as error:
        return ActionResult(f"[error: {error}]", failed=True)
    if action.tool == "bash":
        command: str | list[str] = arguments["command"]
    elif action.tool == "read_file":
        command = ["cat", "--", arguments["path"]]
    else:
        command = ["bash", "-c", _WRITE, "write_file", arguments["path"]]
    stdin = arguments.get("content", "").encode("utf-8", "surrogatepass")
    result = await sandbox.run(command, timeout_s=timeout_s, stdin=stdin, merge_stderr=True)
    return ActionResult(_text(result, timeout_s), failed=result.exit_code != 0, wall_s=result.wall_s)
