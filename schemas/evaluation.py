"""What an evaluation records of one attempt. Called by `pipelines.posttrain`."""

from schemas.record import Count, Record


class Outcome(Record):
    """One attempt of one arm at one held-out task."""

    arm: str
    """Which checkpoint or method was evaluated."""
    scaffold: str
    """Scaffold it was evaluated through."""
    constrained: bool = False
    """Whether decoding was held to the tools' schemas; scaffolds without schemas have no such attempts."""
    task_id: str
    """The task."""
    wording_id: str
    """The wording of the task's instruction: the cluster."""
    seed: Count
    """Training seed of the arm."""
    repeat: Count
    """Which attempt at the task, from 0."""
    passed: bool
    """Whether verification passed."""
    tokens: Count
    """Tokens sampled in the attempt."""
