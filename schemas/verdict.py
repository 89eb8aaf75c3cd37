"""What a scorer says of a trajectory, and what a filter decides."""

from schemas.record import Record


class Score(Record):
    """One number about one sample. Only `reward` trains; the rest are metrics."""

    name: str
    """What is measured."""
    value: float | None
    """Null when it could not be decided."""
    scorer: str
    """Who measured it, with version: "verifier/1"."""


class Verdict(Record):
    """Keep or reject, with the reason."""

    keep: bool
    """Whether the sample goes into a shard."""
    reason: str
    """`kept`, or the first filter that refused it, to group by."""
