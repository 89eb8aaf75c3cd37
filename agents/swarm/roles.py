"""The cast of an episode: a table, not classes. Who plays in which layout, with which tools and which prompt."""

from dataclasses import dataclass

from schemas.episode import Layout

_WORK = ("bash", "read_file", "write_file", "submit")
_TEAM = (*_WORK, "send_message", "wait")


@dataclass(frozen=True)
class Part:
    """One agent of a layout: `name` in the episode, `role` (a template in prompts/roles), tools it is offered."""

    name: str
    role: str
    tools: tuple[str, ...]


CASTS: dict[Layout, tuple[Part, ...]] = {
    "solo": (Part("solo", "solo", _WORK),),
    "team": (
        Part("lead", "lead", _TEAM),
        Part("teammate_1", "teammate", _TEAM),
        Part("teammate_2", "teammate", _TEAM),
        Part("reviewer", "reviewer", _TEAM),
    ),
}
"""The first part starts with the user's task, and its submit ends the episode; the others start when mail arrives."""
