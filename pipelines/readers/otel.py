"""OpenTelemetry traces of agents: OTLP JSON (one file or JSONL batches), SDK dumps and the like; one session per trace.

Spans are found wherever they stand in a record, so the layouts differ in nothing but field names. The conversation is
in the attributes of model spans (`gen_ai.*`, OpenInference `llm.*`, Vercel `ai.*`); each resends the history, which
counts once. Children come before their parents and batches split traces: a file is held until its end.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.readers.common import BadRecord, Draft, count, mapping, problem_of, sequence, text_of, timestamp, word
from pipelines.readers.otel_messages import attributes_of, messages_of, tools_of
from pipelines.readers.pairing import Turn, conversation
from pipelines.readers.parse import Problem, Value
from schemas.session import ToolSpec

NAME = "otel"

_DEPTH = 9
_METRICS = ("resourceMetrics", "resource_metrics", "resourceLogs", "resource_logs")
_INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_MODELS = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "ai.model.id")


@dataclass(frozen=True, slots=True)
class _Span:
    trace: str
    span: str
    parent: str | None
    start: int
    name: str
    attributes: dict[str, Any]
    events: list[dict[str, Any]]
    failed: bool | None


@dataclass(slots=True)
class _Trace:
    at: Value
    spans: list[_Span] = field(default_factory=list)


def matches(value: Any) -> bool:
    """Whether a record holds spans, or other telemetry."""
    if next(_spans(value), None) is not None:
        return True
    record = mapping(mapping(value).get("record", value))
    return any(key in record for key in ("resourceSpans", "resource_spans", *_METRICS))


def read(values: Iterator[Value]) -> Iterator[Draft | Problem]:
    """One session per trace, by trace id in the order they begin in the file."""
    traces: dict[str, _Trace] = {}
    for value in values:
        found = False
        for raw in _spans(value.value):
            found = True
            span = _span(raw)
            traces.setdefault(span.trace, _Trace(value)).spans.append(span)
        if not found:
            reason = "no_conversation" if matches(value.value) else "unexpected_shape"
            yield problem_of(BadRecord(reason, "The record holds no spans."), value)
    for i, (trace_id, trace) in enumerate(traces.items()):
        yield replace(_draft(trace_id, trace), place=f"traces[{i}]")


def _spans(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Every span below a value, in file order."""
    if isinstance(value, dict):
        if "name" in value and _ids(value)[0]:
            yield value
            return
        value = value.values()
    elif not isinstance(value, list):
        return
    if depth < _DEPTH:
        for item in value:
            if isinstance(item, dict | list):
                yield from _spans(item, depth + 1)


def _ids(raw: dict[str, Any]) -> tuple[str | None, str | None]:
    """(trace id, span id) of a span, from where its layout has them."""
    for holder in (raw, raw.get("context"), raw.get("spanContext")):
        own = mapping(holder)
        trace, span = own.get("traceId", own.get("trace_id")), own.get("spanId", own.get("span_id"))
        if isinstance(trace, str) and trace and isinstance(span, str):
            return word(trace), word(span)
    return None, None


def _span(raw: dict[str, Any]) -> _Span:
    trace, span = _ids(raw)
    parent = next((word(raw[k]) for k in ("parentSpanId", "parent_id", "parent_span_id") if raw.get(k)), None)
    parent = parent or word(mapping(raw.get("parentSpanContext")).get("spanId"))
    start = next((raw[k] for k in ("startTimeUnixNano", "start_time", "startTime") if raw.get(k) is not None), 0)
    return _Span(
        trace=trace or "",
        span=span or "",
        parent=parent,
        start=_nanoseconds(start),
        name=word(raw.get("name")) or "",
        attributes=attributes_of(raw.get("attributes")),
        events=[e for e in sequence(raw.get("events")) if isinstance(e, dict)],
        failed=_failed(mapping(raw.get("status"))),
    )


def _failed(status: dict[str, Any]) -> bool | None:
    """Whether a span's status says error (True) or ok (False); unset says neither. Enum numbers, or their names."""
    code = str(status.get("code", status.get("status_code", ""))).upper().removeprefix("STATUS_CODE_")
    return {"1": False, "OK": False, "2": True, "ERROR": True}.get(code)


def _nanoseconds(value: Any) -> int:
    if isinstance(value, list) and len(value) == 2:  # JavaScript's [seconds, nanoseconds]
        seconds, rest = count(value[0]), count(value[1])
        return (seconds or 0) * 10**9 + (rest or 0)
    moment = timestamp(value) if isinstance(value, str) and not value.isdigit() else None  # the console exporter's ISO
    return int(moment.timestamp() * 1e6) * 1000 if moment else count(value) or 0


# From spans to a conversation


def _draft(trace_id: str, trace: _Trace) -> Draft:
    spans = sorted(trace.spans, key=lambda span: (span.start, span.span))
    talking = _leaves(spans)
    tools: dict[str, ToolSpec] = {}
    for span in talking:
        for spec in tools_of(span.attributes):
            tools.setdefault(spec.name, spec)
    merged: dict[str, Any] = {}
    for span in spans:
        for key, item in span.attributes.items():
            merged.setdefault(key, item)
    return Draft(
        at=replace(trace.at, value=merged),
        position=f"trace {trace_id}",
        messages=conversation(_turns(spans, {span.span for span in talking})),
        source_id=word(merged.get("gen_ai.conversation.id")) or word(merged.get("session.id")) or trace_id,
        model=next((word(merged[key]) for key in _MODELS if word(merged.get(key))), None),
        tools=list(tools.values()),
        input_tokens=_sum(talking, _INPUT_TOKENS),
        output_tokens=_sum(talking, _OUTPUT_TOKENS),
    )


def _sum(spans: list[_Span], keys: Iterable[str]) -> int | None:
    found = [next((n for k in keys if (n := count(span.attributes.get(k))) is not None), None) for span in spans]
    logged = [n for n in found if n is not None]
    return sum(logged) if logged else None


def _leaves(spans: list[_Span]) -> list[_Span]:
    """Spans that hold messages and have no such span below them: a wrapper repeats what is inside it."""
    talking = [span for span in spans if any(messages_of(span.attributes, span.events))]
    parents = {span.span: span.parent for span in spans}
    wrappers = set()
    for span in talking:
        above = span.parent
        while above is not None and above not in wrappers:
            wrappers.add(above)
            above = parents.get(above)
    return [span for span in talking if span.span not in wrappers]


def _turns(spans: list[_Span], talking: set[str]) -> Iterator[Turn]:
    """Turns in time order; an input message that has been seen is history that was sent again."""
    agents = _agents(spans)
    main = next((agents[s.span] for s in spans if s.span in talking), None)
    seen: Counter[tuple[str, ...]] = Counter()
    failed = {_call_id(span): span.failed for span in spans if span.failed is not None}
    for span in spans:
        agent = agents[span.span] if agents[span.span] != main else None
        if span.span in talking:
            inputs, outputs = messages_of(span.attributes, span.events)
            sent: Counter[tuple[str, ...]] = Counter()
            for turn in inputs:
                sent.update(keys := _keys(turn))
                if any(sent[key] > seen[key] for key in keys):
                    if turn.role == "tool" and turn.is_error is None and turn.answers:
                        turn = turn._replace(is_error=failed.get(turn.answers))  # noqa: PLW2901
                    yield turn._replace(agent=agent, timestamp=span.start or None)
            seen |= sent
            for turn in outputs:
                seen.update(_keys(turn))
                yield turn._replace(agent=agent, timestamp=span.start or None)
        else:
            result = _tool_result(span)
            if result is not None and seen[("call", result.answers or "")] > seen[("result", result.answers or "")]:
                seen.update(_keys(result))
                yield result._replace(agent=agent, timestamp=span.start or None)


def _keys(turn: Turn) -> list[tuple[str, ...]]:
    """What makes a message the same one when it is sent again: its calls and results by id, else its text."""
    if turn.role == "tool" and turn.answers:
        return [("result", turn.answers)]
    keys: list[tuple[str, ...]] = [("call", c.call_id or f"{c.name} {c.arguments_json}") for c in turn.calls]
    text = text_of(turn.content)
    return [*keys, ("text", turn.role, text or "")] if text or not keys else keys


def _agents(spans: list[_Span]) -> dict[str, str | None]:
    """Span id -> name of the agent around it."""
    by_id = {span.span: span for span in spans}
    names: dict[str, str | None] = {}
    for span in spans:
        above: _Span | None = span
        name, steps = None, 0
        while above is not None and name is None and steps < 1000:
            name = word(above.attributes.get("gen_ai.agent.name")) or word(above.attributes.get("agent.name"))
            above, steps = by_id.get(above.parent or ""), steps + 1
        names[span.span] = name
    return names


def _tool_result(span: _Span) -> Turn | None:
    """The result that a tool span with a call id logs: the next model span may never have been reached."""
    own, call_id = span.attributes, _call_id(span)
    output = own.get("gen_ai.tool.call.result", own.get("output.value"))
    if not call_id or not output:
        return None
    return Turn("tool", output, answers=call_id, name=own.get("gen_ai.tool.name"), is_error=span.failed)


def _call_id(span: _Span) -> str | None:
    return word(span.attributes.get("gen_ai.tool.call.id")) or word(span.attributes.get("tool_call.id"))
