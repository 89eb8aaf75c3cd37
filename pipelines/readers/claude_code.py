"""Claude Code sessions: one JSON line per event, the web export with `loglines`, and `claude -p` stream-json.

Lines of one session are gathered by their session id, so a file is held as long as its sessions last. One API message
is spread over several lines with the same message id, each repeating the usage; tool results are `user` lines; lines
of sub-agents stand between the others (`isSidechain`) or in files of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from pipelines.readers.common import BadRecord, Draft, call_of, count, dumps, mapping, problem_of, sequence, word
from pipelines.readers.pairing import Turn, conversation
from pipelines.readers.parse import Problem, Value
from schemas.session import ToolSpec

NAME = "claude_code"

_OWN_KINDS = frozenset(
    """summary file-history-snapshot file-history-delta queue-operation attachment last-prompt permission-mode ai-title
    agent-name agent-setting pr-link worktree-state""".split()  # noqa: SIM905
)
_OWN_FIELDS = ("sessionId", "session_id", "leafUuid", "snapshot", "uuid", "parent_tool_use_id")


@dataclass(slots=True)
class _Session:
    """What has been read of one session."""

    at: Value
    turns: list[Turn] = field(default_factory=list)
    merged: dict[tuple[str | None, str], int] = field(default_factory=dict)
    """(agent, message id) -> index in `turns`."""
    usage: dict[tuple[str | None, str], tuple[int, int]] = field(default_factory=dict)
    agents: dict[str, str | None] = field(default_factory=dict)
    """uuid of a line -> its agent."""
    sidechains: int = 0
    seen: set[tuple[str, bytes]] = field(default_factory=set)
    model: str | None = None
    outcome: str | None = None
    tools: list[ToolSpec] = field(default_factory=list)


def matches(value: Any) -> bool:
    """Whether a line, or a web export, has the shape of this format."""
    line = mapping(value)
    if isinstance(line.get("loglines"), list):
        return True
    if not isinstance(line.get("type"), str) or "payload" in line:
        return False
    if line["type"] in _OWN_KINDS:
        return any(key in line for key in _OWN_FIELDS)
    spoken = isinstance(line.get("message"), dict) and "content" in line["message"]
    return (spoken and line["type"] in ("user", "assistant")) or (
        line["type"] == "system" and any(key in line for key in ("sessionId", "session_id"))
    )


def read(values: Iterator[Value]) -> Iterator[Draft | Problem]:
    """One session per session id in the file, in the order they begin."""
    sessions: dict[str, _Session] = {}
    current = ""
    for value in values:
        loglines = mapping(value.value).get("loglines")
        lines = loglines if isinstance(loglines, list) else [value.value]
        for i, line in enumerate(lines):
            try:
                if not isinstance(line, dict):
                    where = None if lines is not loglines else f"loglines[{i}]"
                    raise BadRecord("not_an_object", "The line is not a JSON object.", where)
                key = word(line.get("sessionId")) or word(line.get("session_id")) or current
                if not current and key and "" in sessions:  # lines before the first id belong to it
                    sessions[key] = sessions.pop("")
                current = key
                _take(sessions.setdefault(key, _Session(value)), line)
            except BadRecord as bad:
                yield problem_of(bad, value)
    for key, session in sessions.items():
        yield Draft(
            at=session.at,
            messages=conversation(session.turns),
            source_id=key or None,
            model=session.model,
            tools=session.tools,
            outcome=session.outcome,
            input_tokens=sum(u[0] for u in session.usage.values()) if session.usage else None,
            output_tokens=sum(u[1] for u in session.usage.values()) if session.usage else None,
        )


def _take(session: _Session, line: dict[str, Any]) -> None:
    """Add one line to its session. Lines of kinds that say nothing are left out."""
    agent = _agent(session, line)
    kind, message = line.get("type"), line.get("message")
    if kind == "result":
        session.outcome = word(line.get("subtype"))
    elif kind == "system" and isinstance(line.get("tools"), list):
        session.tools = [ToolSpec(name=name) for name in map(word, line["tools"]) if name]
    if kind not in ("user", "assistant"):
        return
    if not isinstance(message, dict):
        raise BadRecord("unexpected_shape", "The line has no message.", "message")
    uuid = word(line.get("uuid"))
    if uuid is not None:
        # By content too: some exporters give all lines of a message one uuid.
        same = (uuid, blake2b(dumps(message.get("content")).encode(), digest_size=8).digest())
        if same in session.seen:
            return
        session.seen.add(same)
    if kind == "assistant":
        _take_reply(session, line, message, agent)
    else:
        session.turns.extend(_said(line, message, agent))


def _agent(session: _Session, line: dict[str, Any]) -> str | None:
    """Name of the sub-agent that wrote a line: its id, or the sidechain that its parents lead to; null for the main."""
    caller = word(line.get("parent_tool_use_id"))
    if caller is not None:
        return caller
    uuid, parent = word(line.get("uuid")), word(line.get("parentUuid"))
    agent = None
    if line.get("isSidechain") is True:
        agent = word(line.get("agentId")) or (session.agents.get(parent) if parent else None)
        if agent is None:  # a root: the prompt that starts a sub-agent, or a line whose parents were not written
            session.sidechains += not session.sidechains or _is_prompt(line)
            agent = f"sidechain_{session.sidechains}"
    if uuid:
        session.agents[uuid] = agent
    return agent


def _is_prompt(line: dict[str, Any]) -> bool:
    content = mapping(line.get("message")).get("content")
    results = any(mapping(block).get("type") == "tool_result" for block in sequence(content))
    return line.get("type") == "user" and not results


def _take_reply(session: _Session, line: dict[str, Any], message: dict[str, Any], agent: str | None) -> None:
    content = message.get("content")
    blocks = sequence(content) if isinstance(content, list) else [{"type": "text", "text": content}]
    blocks = [mapping(block) for block in blocks]
    texts = [b for b in blocks if b.get("type") not in ("tool_use", "server_tool_use", "thinking", "redacted_thinking")]
    turn = Turn(
        "assistant",
        texts or None,
        reasoning=[b for b in blocks if b.get("type") == "thinking"],
        calls=[call_of(b, "message.content") for b in blocks if b.get("type") in ("tool_use", "server_tool_use")],
        agent=agent,
        timestamp=line.get("timestamp"),
    )
    session.model = session.model or word(message.get("model"))
    message_id = word(message.get("id"))
    key = (agent, message_id or f"turn {len(session.turns)}")
    usage = mapping(message.get("usage"))
    kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    if usage:
        prompt, sampled = sum(count(usage.get(k)) or 0 for k in kinds), count(usage.get("output_tokens")) or 0
        before = session.usage.get(key, (0, 0))
        session.usage[key] = (max(before[0], prompt), max(before[1], sampled))
    at = session.merged.get(key)
    if at is None:
        session.merged[key] = len(session.turns)
        session.turns.append(turn)
        return
    first = session.turns[at]
    session.turns[at] = first._replace(
        content=[*(first.content or []), *texts] or None,
        reasoning=[*first.reasoning, *turn.reasoning],
        calls=[*first.calls, *turn.calls],
    )


def _said(line: dict[str, Any], message: dict[str, Any], agent: str | None) -> Iterator[Turn]:
    """The turns of a `user` line: results of tools, and what a person said or the client put in their name."""
    content, time = message.get("content"), line.get("timestamp")
    blocks = [b if isinstance(b, dict) else {"type": "text", "text": b} for b in sequence(content)]
    for block in blocks:
        if block.get("type") == "tool_result":
            error = block.get("is_error")
            if not isinstance(error, bool):
                extra = line.get("toolUseResult")
                error = True if isinstance(extra, str) and extra.startswith("Error") else None
            answers = word(block.get("tool_use_id")) or "?"
            yield Turn("tool", block.get("content"), answers=answers, is_error=error, agent=agent, timestamp=time)
    rest = [block for block in blocks if block.get("type") != "tool_result"]
    by_client = line.get("isMeta") is True or line.get("isCompactSummary") is True
    if rest or not isinstance(content, list):
        said = rest or content
        yield Turn("system" if by_client else "user", said, agent=agent, timestamp=time)
