"""Reasoning effort as a request parameter (S20): the share of the reply budget it gives. Called by both engines."""

LEAST = 16
"""Fewest tokens of a reply, so that even effort 1 can finish a short tool call."""


def reply_budget(effort: int | None, max_tokens: int) -> int:
    """Tokens a reply may have: `effort` hundredths of `max_tokens`, at least 16 (never above `max_tokens`).

    None means no level was asked for: the whole budget. ValueError outside 1-100.
    """
    if effort is None:
        return max_tokens
    if not 1 <= effort <= 100:
        raise ValueError(f"effort {effort} is outside 1-100")
    return min(max_tokens, max(LEAST, max_tokens * effort // 100))
