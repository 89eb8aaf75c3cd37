"""Single tokens as OpenAI shows them, with log probabilities. Called by `chat` and `completions`."""

from collections.abc import Sequence
from typing import Any

from agents.engine.base import Alternative
from agents.engine.tokenizer import ChatTokenizer

_LEAST = -9999.0
"""OpenAI's number for a probability of nothing: JSON has no infinity."""


def piece(tokenizer: ChatTokenizer, token: int) -> tuple[str, bytes]:
    """Text and bytes of a token. Part of a character has the text `bytes:\\xe2\\x80`, a control token none."""
    text = tokenizer.decode([token])
    if "\ufffd" not in text:
        return text, text.encode()
    raw: bytes = tokenizer.constraint.decode_bytes([token])
    try:
        return raw.decode(), raw
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw


def logprob(value: float) -> float:
    """A log probability that JSON can hold."""
    return max(value, _LEAST)


def entries(
    tokenizer: ChatTokenizer,
    ids: Sequence[int],
    logprobs: Sequence[float],
    top: Sequence[Sequence[Alternative]],
) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat reply: one entry per sampled id, the end of the turn included."""
    alternatives = top or [()] * len(ids)
    return [
        {
            **_entry(tokenizer, token, value),
            "top_logprobs": [_entry(tokenizer, other.token, other.logprob) for other in others],
        }
        for token, value, others in zip(ids, logprobs, alternatives, strict=True)
    ]


def _entry(tokenizer: ChatTokenizer, token: int, value: float) -> dict[str, Any]:
    text, raw = piece(tokenizer, token)
    return {"token": text, "logprob": logprob(value), "bytes": list(raw)}
