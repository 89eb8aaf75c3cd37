"""Scaffold `bash_minimal`: a thought and one shell command in a fenced block; no JSON anywhere.

`submit`, `send_message` and `wait` are commands of the scaffold and stand alone in their block; their text follows on
the same line or as a here-document.
"""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from agents.scaffolds.base import Parsed
from prompts import render
from schemas.task import Action

NAME = "bash_minimal"
CALL_TAGS = None
_BLOCK = re.compile(r"^(`{3,})bash[ \t]*\n(.*?)\n\1[ \t]*$", re.MULTILINE | re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<'(\w+)'\n(.*?)\n?\1\s*", re.DOTALL)
_OWN = ("submit", "send_message", "wait")


def system_prompt(role: str, tools: Sequence[str], effort: int) -> str:
    """The system message: effort line, role, the form of a reply."""
    commands = [t for t in _OWN if t in tools]
    return render("scaffolds/bash_minimal/system", role=role, commands=commands, effort=effort)


def offered(tools: Sequence[str]) -> list[dict]:
    """None: everything is a command."""
    return []


def _marker(text: str) -> str:
    marker = "END"
    while marker in text:
        marker += "_"
    return marker


def _here_document(text: str) -> str:
    marker = _marker(text)
    return f"<<'{marker}'\n{text}\n{marker}"


def _command(action: Action) -> str:
    arguments = json.loads(action.arguments_json)
    if action.tool == "bash":
        return str(arguments["command"])
    if action.tool == "read_file":
        return f"cat {shlex.quote(arguments['path'])}"
    if action.tool == "write_file":
        path, content = arguments["path"], arguments["content"]
        parent = str(PurePosixPath(path).parent)
        make = "" if parent == "." else f"mkdir -p {shlex.quote(parent)} && "
        if content.endswith("\n"):
            return f"{make}cat > {shlex.quote(path)} {_here_document(content[:-1])}"
        return f"{make}printf %s {shlex.quote(content)} > {shlex.quote(path)}"
    if action.tool == "wait":
        return "wait"
    head = "submit" if action.tool == "submit" else f"send_message {arguments['to']}"
    text = arguments["answer"] if action.tool == "submit" else arguments["text"]
    return f"{head} {_here_document(text)}"


def write(thought: str, action: Action) -> str:
    """Thought and block; the fence is longer than any run of backticks inside."""
    command = _command(action)
    fence = "```"
    while fence in command:
        fence += "`"
    return f"{thought}\n{fence}bash\n{command}\n{fence}"


def write_garbled(thought: str, action: Action) -> str:
    """The command stands there without its fence."""
    return f"{thought}\n{_command(action)}".replace("```", "")


def _own_command(command: str, tools: Sequence[str]) -> Parsed | None:
    word, _, rest = command.strip().partition(" ")
    rest = rest.strip()
    if word not in _OWN or (word == "wait" and rest):  # `wait PID` is the shell's own
        return None
    if word not in tools:
        return Parsed((), f"{word} is not for you.")
    if word == "wait":
        return Parsed((Action(tool="wait", arguments_json="{}"),))
    arguments = {}
    if word == "send_message":
        arguments["to"], _, rest = rest.partition(" ")
        if not rest.strip():
            return Parsed((), "send_message needs an agent and a text.")
    here = _HERE_DOCUMENT.fullmatch(rest)
    arguments["answer" if word == "submit" else "text"] = here.group(2) if here else rest
    return Parsed((Action(tool=word, arguments_json=json.dumps(arguments, ensure_ascii=False)),))


def parse(reply: str, tools: Sequence[str]) -> Parsed:
    """The one command of the reply."""
    blocks = _BLOCK.findall(reply)
    if len(blocks) != 1:
        return Parsed((), f"it holds {len(blocks)} closed ```bash blocks, not one.")
    command = blocks[0][1]
    if not command.strip():
        return Parsed((), "the command is empty.")
    own = _own_command(command, tools)
    if own is not None:
        return own
    return Parsed((Action(tool="bash", arguments_json=json.dumps({"command": command}, ensure_ascii=False)),))


def result(text: str) -> str:
    """An action's output between output tags."""
    return render("scaffolds/bash_minimal/result", text=text.rstrip("\n"))


def repair(error: str) -> str:
    """What the agent is told when its reply could not be read."""
    return render("scaffolds/bash_minimal/repair", error=error)
