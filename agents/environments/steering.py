"""What a pattern steers inside a family: length and error rate."""

from collections.abc import Sequence
from typing import Literal

from schemas.pattern import Bucket, UsagePattern

LengthClass = Literal["short", "medium", "long"]


def _mean(buckets: Sequence[Bucket]) -> float:
    sessions = sum(b.count for b in buckets)
    return sum(b.low * b.count for b in buckets) / sessions if sessions else 0.0


def length_class(pattern: UsagePattern) -> LengthClass:
    """By the mean number of tool calls: below 4 short, below 10 medium."""
    mean = _mean(pattern.calls)
    if mean < 4:
        return "short"
    return "medium" if mean < 10 else "long"


def slip_rate(pattern: UsagePattern) -> float:
    """Failed calls per call, at most 0.35."""
    calls = _mean(pattern.calls)
    return min(0.35, _mean(pattern.errors) / calls) if calls else 0.0
