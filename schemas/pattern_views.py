"""What environments read off a usage pattern: how long its sessions are, how often a step fails, which task fits.

Pure functions of a released pattern, so they say nothing about a single session. Called by environments and by the
task stage.
"""

from typing import Literal

from schemas.pattern import Bucket, Category, Domain, UsagePattern

LengthClass = Literal["short", "medium", "long"]

# A family's share by kind of work, before the tools used are looked at.
DOMAIN_FAMILIES: dict[Domain, dict[str, float]] = {
    "data_analysis": {"table_work": 0.85, "file_chores": 0.1, "code_repair": 0.05},
    "software": {"code_repair": 0.85, "file_chores": 0.1, "table_work": 0.05},
    "customer_support": {"table_work": 0.75, "file_chores": 0.25},
    "operations": {"file_chores": 0.55, "code_repair": 0.3, "table_work": 0.15},
    "research": {"table_work": 0.5, "file_chores": 0.5},
    "office": {"file_chores": 0.85, "table_work": 0.15},
    "other": {"table_work": 0.34, "code_repair": 0.33, "file_chores": 0.33},
}
CATEGORY_FAMILIES: dict[Category, str] = {
    "database": "table_work",
    "run_code": "table_work",
    "look_up": "table_work",
    "edit_file": "code_repair",
    "write_file": "file_chores",
    "search": "file_chores",
}
SAME_WORK = {"errands": "file_chores", "lookups": "file_chores"}
"""Families that practise the work of another in smaller steps, steered by what steers to that one."""
CATEGORY_SHARE = 0.3
HIGHEST_SLIP_RATE = 0.5


def bucket_value(low: int) -> float:
    """The middle of a bucket: 0, 1, then low .. 2 low - 1."""
    return float(low) if low < 2 else 1.5 * low - 0.5


def mean(histogram: list[Bucket]) -> float:
    """Mean over sessions, each taken at the middle of its bucket; 0.0 for an empty histogram."""
    sessions = sum(bucket.count for bucket in histogram)
    return sum(bucket_value(bucket.low) * bucket.count for bucket in histogram) / sessions if sessions else 0.0


def median_low(histogram: list[Bucket]) -> int:
    """Low end of the bucket that holds the median session; 0 for an empty histogram."""
    half = (sum(bucket.count for bucket in histogram) + 1) // 2
    for bucket in sorted(histogram, key=lambda b: b.low):
        half -= bucket.count
        if half <= 0:
            return bucket.low
    return 0


def slip_rate(pattern: UsagePattern) -> float:
    """Share of tool calls that failed, at most 0.5."""
    calls = mean(pattern.calls)
    return min(HIGHEST_SLIP_RATE, round(mean(pattern.errors) / calls, 4)) if calls else 0.0


def length_class(pattern: UsagePattern) -> LengthClass:
    """By the median session's tool calls: up to 3, 4 to 7, 8 and more."""
    low = median_low(pattern.calls)
    if low < 4:
        return "short"
    return "medium" if low < 8 else "long"


def weight_of(family: str, pattern: UsagePattern) -> float:
    """How much of the work of a pattern a family practises, 0 to 1."""
    return families_for(pattern).get(SAME_WORK.get(family, family), 0.0)


def families_for(pattern: UsagePattern) -> dict[str, float]:
    """Environment family → weight, summing to 1: mostly by kind of work, the rest by the tools used."""
    weights = dict.fromkeys(("table_work", "code_repair", "file_chores"), 0.0) | DOMAIN_FAMILIES[pattern.domain]
    counts = [(CATEGORY_FAMILIES[c.category], c.count) for c in pattern.categories if c.category in CATEGORY_FAMILIES]
    total = sum(count for _, count in counts)
    if total:
        weights = {family: (1 - CATEGORY_SHARE) * weight for family, weight in weights.items()}
        for family, count in counts:
            weights[family] += CATEGORY_SHARE * count / total
    return {family: round(weight, 6) for family, weight in sorted(weights.items()) if weight > 0}
