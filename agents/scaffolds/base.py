"""What a scaffold is: a module that writes tools and turns as text and reads replies back.

Who calls it: the swarm's loop (render prompts, parse replies) and the blueprint policy (write reference actions).
A scaffold module has `NAME` and the functions of `Scaffold`. It never runs anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.task import Action


@dataclass(frozen=True)
class Parsed:
    """What was read in a reply: either actions, or the reason why there are none."""

    actions: tuple[Action, ...]
    error: str | None = None


class Scaffold(Protocol):
    """The functions of a scaffold module."""

    NAME: str
    CALL_TAGS: tuple[str, str] | None
    """Text around a JSON tool call, for constrained decoding; None where a call is not JSON."""

    def system_prompt(self, role: str, tools: Sequence[str], effort: int) -> str:
        """The system message: effort line, role, tools."""
        ...

    def offered(self, tools: Sequence[str]) -> list[dict]:
        """Function schemas that the agent is told of; empty where the scaffold has none."""
        ...

    def write(self, thought: str, action: Action) -> str:
        """A reply that does `action`: `parse(write(t, a))` has the effect of `a`."""
        ...

    def write_garbled(self, thought: str, action: Action) -> str:
        """The same reply with a slip of form that `parse` refuses."""
        ...

    def parse(self, reply: str, tools: Sequence[str]) -> Parsed:
        """Read a reply. Hostile text of any kind gives `Parsed.error`, never an exception."""
        ...

    def result(self, text: str) -> str:
        """An action's output as the agent sees it."""
        ...

    def repair(self, error: str) -> str:
        """What the agent is told when its reply could not be read."""
        ...
