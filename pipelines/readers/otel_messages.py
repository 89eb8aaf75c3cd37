"""What the attributes of an OpenTelemetry span say: messages in, messages out, and tools offered. Used by `otel`.

Read are the GenAI conventions (`gen_ai.input.messages`, their older indexed form and their events), OpenInference
(`llm.input_messages.N...`) and the Vercel AI SDK (`ai.prompt.messages`).
"""

from collections.abc import Iterator
from typing import Any

from pipelines.readers.common import ROLES, call_of, dumps, mapping, role_of, sequence, tool_specs, word
from pipelines.readers.pairing import Turn
from pipelines.readers.parse import loads
from schemas.session import ToolSpec

_DEPTH = 9
_CALL_PARTS = ("tool_call", "tool-call", "tool_use")
_RESULT_PARTS = ("tool_call_response", "tool-result", "tool_result")
_THOUGHT_PARTS = ("reasoning", "thinking")
_TOOLS = ("gen_ai.tool.definitions", "gen_ai.request.tools", "ai.prompt.tools")


def attributes_of(raw: Any) -> dict[str, Any]:
    """Attributes as a plain mapping, from OTLP's key/value arrays or from a mapping."""
    if isinstance(raw, list):
        pairs = (mapping(item) for item in raw)
        return {p["key"]: _any_value(p.get("value")) for p in pairs if isinstance(p.get("key"), str)}
    return mapping(raw)


def _any_value(value: Any, depth: int = 0) -> Any:
    """The value of an OTLP AnyValue; an intValue stays the string it is, `count` reads it."""
    if not isinstance(value, dict) or depth > _DEPTH:
        return None if isinstance(value, dict) else value
    for kind, inner in value.items():
        if kind in ("arrayValue", "array_value"):
            return [_any_value(item, depth + 1) for item in sequence(mapping(inner).get("values"))]
        if kind in ("kvlistValue", "kvlist_value"):
            pairs = (mapping(item) for item in sequence(mapping(inner).get("values")))
            return {str(p.get("key")): _any_value(p.get("value"), depth + 1) for p in pairs}
        return inner
    return None


def tools_of(own: dict[str, Any]) -> list[ToolSpec]:
    """Tools that a model span declares."""
    listed = next((own[key] for key in _TOOLS if key in own), None)
    if isinstance(listed, list):  # Vercel: a list of JSON texts
        listed = [loads(item) if isinstance(item, str) else item for item in listed]
    indexed = [mapping(loads(mapping(t.get("tool")).get("json_schema"))) for t in _indexed(own, "llm.tools.")]
    return [*tool_specs(listed), *tool_specs(indexed)]


def messages_of(own: dict[str, Any], events: list[dict[str, Any]]) -> tuple[list[Turn], list[Turn]]:
    """(input turns, output turns) of a span; both empty when it is no model span or logs no content."""
    inputs = _listed(own.get("gen_ai.input.messages")) or _vercel_prompt(own)
    inputs = inputs or [mapping(m.get("message")) for m in _indexed(own, "llm.input_messages.")]
    inputs = inputs or _indexed(own, "gen_ai.prompt.") or _from_events(events, "gen_ai.", ".message")
    outputs = _listed(own.get("gen_ai.output.messages"))
    outputs = outputs or [mapping(m.get("message")) for m in _indexed(own, "llm.output_messages.")]
    outputs = outputs or _indexed(own, "gen_ai.completion.") or _from_events(events, "gen_ai.choice", "")
    said, calls = own.get("ai.response.text") or own.get("ai.response.object"), own.get("ai.response.toolCalls")
    if not outputs and (said or calls):
        outputs = [{"role": "assistant", "content": said, "tool_calls": _listed(calls)}]
    system = own.get("gen_ai.system_instructions")
    if system is not None and inputs:
        inputs = [{"role": "system", "content": _listed(system) or system}, *inputs]
    return [t for m in inputs for t in _turn(m, "user")], [t for m in outputs for t in _turn(m, "assistant")]


def _vercel_prompt(own: dict[str, Any]) -> list[Any]:
    prompt = loads(own["ai.prompt"]) if isinstance(own.get("ai.prompt"), str) else None
    asked = mapping(prompt).get("prompt")
    found = _listed(own.get("ai.prompt.messages")) or sequence(mapping(prompt).get("messages"))
    return found or ([{"role": "user", "content": asked}] if isinstance(asked, str) else [])


def _listed(value: Any) -> list[Any]:
    """A list, or the list that a JSON text holds."""
    return sequence(loads(value) if isinstance(value, str) else value)


def _indexed(own: dict[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Attributes `prefix<number>.<path>` as a list of nested mappings; numbers inside a path become lists too."""
    tree: dict[str, Any] = {}
    for key, value in own.items():
        if key.startswith(prefix):
            *path, last = key[len(prefix) :].split(".")
            node = tree
            for part in path[:_DEPTH]:
                inner = node.setdefault(part, {})
                node = inner if isinstance(inner, dict) else {}
            node[last] = value
    return [mapping(item) for item in sequence(_as_lists(tree))]


def _as_lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and all(key.isascii() and key.isdigit() and len(key) < 9 for key in node):
        return [_as_lists(node[key]) for key in sorted(node, key=int)]
    return {key: _as_lists(value) for key, value in node.items()}


def _from_events(events: list[dict[str, Any]], start: str, end: str) -> list[dict[str, Any]]:
    found = []
    for event in events:
        name = event.get("name")
        if isinstance(name, str) and name.startswith(start) and name.endswith(end) and name != "gen_ai.":
            own = attributes_of(event.get("attributes"))
            role = name.removeprefix("gen_ai.").removesuffix(".message")
            message = {key: loads(v) or v if key in ("message", "tool_calls") else v for key, v in own.items()}
            found.append({"role": role if role in ROLES else "assistant", **mapping(message.get("message", message))})
    return found


def _turn(raw: Any, default: str) -> Iterator[Turn]:
    """Turns of one message: a message of results has one for each."""
    message = mapping(raw)
    role = role_of(message.get("role")) or ROLES[default]
    content = next((message[k] for k in ("content", "parts", "contents") if message.get(k) is not None), None)
    parts = [_part(part) for part in sequence(content)]
    raw_calls = [mapping(call).get("tool_call", call) for call in sequence(message.get("tool_calls"))]
    raw_calls += [part for part in parts if part.get("type") in _CALL_PARTS]
    calls = [call_of(call, "tool_calls") for call in raw_calls if isinstance(call, dict)]
    results = [part for part in parts if part.get("type") in _RESULT_PARTS]
    for part in results:
        output = next((part[k] for k in ("response", "result", "output", "content") if part.get(k) is not None), None)
        call_id = next((word(part[k]) for k in ("id", "toolCallId", "tool_use_id") if part.get(k)), None)
        yield Turn("tool", output, answers=call_id, name=part.get("name") or part.get("toolName"))
    thoughts = [part for part in parts if part.get("type") in _THOUGHT_PARTS]
    texts = [p for p in parts if p.get("type") not in (*_CALL_PARTS, *_RESULT_PARTS, *_THOUGHT_PARTS)]
    if role == "tool" and not results:
        yield Turn("tool", content, answers=word(message.get("tool_call_id") or message.get("id")))
    elif not results or texts or calls:
        said = (texts or None) if isinstance(content, list) else content
        yield Turn(role, said, reasoning=thoughts or None, calls=calls)


def _part(part: Any) -> dict[str, Any]:
    if not isinstance(part, dict):
        return {"type": "text", "text": part if isinstance(part, str) else dumps(part)}
    inner = part.get("message_content")
    return mapping(inner) if inner is not None else part
