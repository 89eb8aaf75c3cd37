"""What several sessions share, released under k-anonymity: counts over fixed vocabularies, no text of anyone's."""

from typing import Literal

from schemas.record import Count, Record

Domain = Literal["data_analysis", "software", "customer_support", "operations", "research", "office", "other"]
Category = Literal[
    "read_file", "write_file", "edit_file", "search", "shell", "run_code", "database", "web", "message", "ask_user",
    "plan", "delegate", "look_up", "transact", "finish", "other",
]  # fmt: skip


class Transition(Record):
    """How often one tool category directly followed another inside a session."""

    source: Category
    """Category of the earlier call."""
    target: Category
    """Category of the later call."""
    count: Count
    """Times seen over all supporting sessions."""


class CategoryCount(Record):
    """How many calls fell into one tool category."""

    category: Category
    """Tool category."""
    count: Count
    """Calls over all supporting sessions."""


class Bucket(Record):
    """One bucket of a histogram over sessions."""

    low: Count
    """Smallest value in the bucket; buckets are 0, 1, 2, 4, 8, ... (powers of two)."""
    count: Count
    """Sessions in it."""


class UsagePattern(Record):
    """A usage pattern with its support."""

    pattern_id: str
    """Content id of the key (domain, categories, together) and the counts."""
    domain: Domain
    """Kind of work."""
    categories: list[CategoryCount]
    """Tool categories used, by name."""
    transitions: list[Transition]
    """Order of categories, by (source, target)."""
    turns: list[Bucket]
    """Assistant messages per session."""
    calls: list[Bucket]
    """Tool calls per session."""
    tokens: list[Bucket]
    """Tokens per session; sessions whose log does not count are estimated as characters / 4."""
    errors: list[Bucket]
    """Failed tool results per session."""
    recoveries: list[Bucket]
    """Failed results per session that a later call of the same category put right."""
    agents_together: bool
    """Whether several agents worked in the session."""
    sessions: Count
    """Supporting sessions (at least k)."""
    partners: Count
    """Supporting partners (at least k')."""
    support_hash: str
    """blake2b over the sorted supporting session ids: lineage that only the holder of the session store can open."""
