"""Scaffold `tool_json`: a thought, then JSON tool calls between Hermes tags."""

import json
import re
from collections.abc import Sequence

from agents.scaffolds.base import Parsed
from agents.scaffolds.tools import call_error, tool_schemas, tool_text
from prompts import render
from schemas.task import Action

NAME = "tool_json"
CALL_TAGS = ("<tool_call>\n", "\n</tool_call>")
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_DECODER = json.JSONDecoder()
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may escape one; no file or shard can hold it


def system_prompt(role: str, tools: Sequence[str], effort: int) -> str:
    """The system message: effort line, role, tools as JSON lines."""
    return render("scaffolds/tool_json/system", role=role, tools=[tool_text(t) for t in tools], effort=effort)


def offered(tools: Sequence[str]) -> list[dict]:
    """Function schemas of the tools."""
    return tool_schemas(tools)


def write(thought: str, action: Action) -> str:
    """Thought and call. A `<` of the arguments that would look like a tag is escaped inside the JSON string."""
    call = json.dumps({"name": action.tool, "arguments": json.loads(action.arguments_json)}, ensure_ascii=False)
    call = call.replace("<tool_call", "\\u003ctool_call").replace("</tool_call", "\\u003c/tool_call")
    return f"{thought}\n{_OPEN}\n{call}\n{_CLOSE}"


def write_garbled(thought: str, action: Action) -> str:
    """The call loses its last brace, as models do."""
    return write(thought, action).replace(f"}}\n{_CLOSE}", f"\n{_CLOSE}")


def parse(reply: str, tools: Sequence[str]) -> Parsed:
    """Every call in the reply, in order. A closing tag cut off by the token budget is forgiven, broken JSON is not."""
    actions: list[Action] = []
    position = reply.find(_OPEN)
    if position < 0:
        return Parsed((), "it holds no tool call.")
    while position >= 0:
        start = position + len(_OPEN)
        while start < len(reply) and reply[start].isspace():
            start += 1
        try:
            call, end = _DECODER.raw_decode(reply, start)
        except (ValueError, RecursionError):
            return Parsed((), "the tool call is not JSON.")
        rest = reply[end:].lstrip()
        if rest and not rest.startswith(_CLOSE):
            return Parsed((), f"the tool call is not closed with {_CLOSE}.")
        if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
            return Parsed((), 'a tool call is an object with "name" and "arguments".')
        error = call_error(call["name"], call["arguments"], tools)
        if error:
            return Parsed((), error)
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        if _LONE_SURROGATE.search(arguments):
            return Parsed((), "the arguments are not valid Unicode.")
        actions.append(Action(tool=call["name"], arguments_json=arguments))
        position = reply.find(_OPEN, end)
    return Parsed(tuple(actions))


def result(text: str) -> str:
    """An action's output between response tags."""
    return render("scaffolds/tool_json/result", text=text.rstrip("\n"))


def repair(error: str) -> str:
    """What the agent is told when its reply could not be read."""
    return render("scaffolds/tool_json/repair", error=error)
