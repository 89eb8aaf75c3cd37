"""One partner conversation, normalised from whatever format it was logged in. Never leaves the session store."""

from datetime import datetime
from typing import Literal

from schemas.record import Count, Record

Role = Literal["system", "user", "assistant", "tool"]


class ToolSpec(Record):
    """A tool as the log declares it."""

    name: str
    """Name the agent calls it by."""
    description: str | None = None
    """What the log says it does."""
    parameters_json: str | None = None
    """JSON schema of its arguments."""


class ToolCall(Record):
    """One call inside an assistant message."""

    call_id: str | None = None
    """The log's own id. May repeat inside one conversation: pair by `Message.answers_*`, never by this."""
    name: str
    """Tool name as logged."""
    arguments_json: str
    """Arguments as a JSON object. Text that is not one is kept as {"_raw": text}."""


class Message(Record):
    """One message, counted once however many lines the log spreads it over."""

    role: Role
    """Who really wrote it: a tool result logged under role `user` is `tool` here."""
    content: str | None = None
    """Text; null when the log has none (a pure tool call)."""
    reasoning: str | None = None
    """Thinking that the log keeps apart from the content."""
    tool_calls: list[ToolCall] = []
    """Calls made by an assistant message."""
    name: str | None = None
    """Tool name of a result, where known."""
    answers_message: Count | None = None
    """For a tool result: index in `Session.messages` of the message whose call it answers."""
    answers_call: Count | None = None
    """For a tool result: index of that call in the message's `tool_calls`."""
    is_error: bool | None = None
    """For a tool result: whether it reports a failure; null when the log does not tell."""
    agent: str | None = None
    """Sub-agent that the message belongs to; null for the main one."""
    timestamp: datetime | None = None
    """UTC; null when absent or without a zone."""


class Session(Record):
    """One partner conversation."""

    session_id: str
    """Content id over partner, source and messages."""
    partner: str
    """Who returned the log: a configured field or the log's folder."""
    format: str
    """Reader that understood it."""
    file: str
    """Path relative to the input root, or the input's own name."""
    position: str
    """Where in the file: "line 12", "byte 3071", "item 4" or "trace <id>"."""
    source_id: str | None = None
    """The log's own id of the conversation."""
    model: str | None = None
    """Model that the log names."""
    tools: list[ToolSpec] = []
    """Tools declared in the log."""
    messages: list[Message]
    """In conversation order."""
    reward: float | None = None
    """Score that the log carries."""
    outcome: str | None = None
    """Exit status or finish reason that the log carries."""
    input_tokens: Count | None = None
    """Prompt tokens, each request counted once; null when not logged."""
    output_tokens: Count | None = None
    """Sampled tokens; null when not logged."""


class Reject(Record):
    """Something that did not go through, and why. Holds no partner text."""

    reject_id: str
    """Content id of the other fields."""
    stage: str
    """Stage that refused it."""
    file: str | None = None
    """Input file, for a log record."""
    format: str | None = None
    """Format being read; null when none was recognised."""
    line: Count | None = None
    """1-based line, where the format has lines."""
    byte_offset: Count | None = None
    """0-based offset of the record, where lines mean nothing."""
    subject: str | None = None
    """Id of the task, episode or sample refused."""
    field: str | None = None
    """Path of the offending field inside the record."""
    reason: str
    """One word or snake_case phrase to group by."""
    detail: str | None = None
    """One sentence for a person; never a quotation of the record."""
