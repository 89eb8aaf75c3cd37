"""Hand-made sessions for the pattern tests."""

from schemas.session import Message, Session, ToolCall


def session(
    number: int, partner: str, *tools: str, ask: str = "fix the bug, run the tests", **changes: object
) -> Session:
    """One user turn, then a call per tool; `name!` fails, `name@agent` belongs to a sub-agent."""
    messages = [Message(role="user", content=ask)]
    for tool in tools:
        name, _, agent = tool.rstrip("!").partition("@")
        at = len(messages)
        call = ToolCall(name=name, arguments_json="{}")
        messages.append(Message(role="assistant", tool_calls=[call], agent=agent or None))
        failed = tool.endswith("!")
        messages.append(
            Message(
                role="tool", content="...", answers_message=at, answers_call=0, is_error=failed, agent=agent or None
            )
        )
    messages.append(Message(role="assistant", content="done"))
    fields = {
        "session_id": f"session_{number}",
        "partner": partner,
        "format": "claude_code",
        "file": "a.jsonl",
        "position": "line 1",
        "messages": messages,
    }
    return Session.model_validate(fields | changes)
