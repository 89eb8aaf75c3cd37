"""One request on its way through the engine. Shared by `scheduler`, `runner` and `engine`; no torch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

from agents.engine.base import GenerateResult, Sampling

Finish = Literal["stop", "length"]

ALIGN = 64
"""Prompts are computed in pieces that end at multiples of this, wherever steps cut them, and copied in whole pieces:
the same tokens then get the same keys and values to the last bit, whichever requests run beside them."""


class Buffer(Protocol):
    """Keys and values of one sequence (`attention.KV`), as far as scheduling needs to know them."""

    capacity: int

    def copy_from(self, other: Self, length: int) -> None:
        """Take over the first `length` tokens of `other`."""
        ...


class Matcher(Protocol):
    """Where a reply stands in its grammar (`grammar.Constraint`)."""

    def forced(self, token: int) -> list[int]:
        """Move on by the sampled `token`; the ids that must follow it whatever is sampled."""
        ...


@dataclass(eq=False)
class Sequence:
    """Tokens of one conversation up to and with the reply being sampled.

    `ids[:computed]` have keys and values in `kv`; the rest waits for the next steps. `prompt`: length in front of the
    reply. `limit`: most output tokens. `leader`: a running sequence that is computing `shared` tokens which begin this
    one too; this one waits and copies them.
    """

    conversation: str
    ids: list[int]
    prompt: int
    context: int
    limit: int
    sampling: Sampling
    deliver: Callable[[GenerateResult | Exception], None]
    matcher: Matcher | None = None
    kv: Buffer | None = None
    computed: int = 0
    cached: int = 0
    logprobs: list[float] = field(default_factory=list)
    leader: "Sequence | None" = None
    shared: int = 0
    cancelled: bool = False
    done: bool = False

    @property
    def output(self) -> list[int]:
        """Ids of the reply so far."""
        return self.ids[self.prompt :]

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.ids) - self.computed

    @property
    def replying(self) -> bool:
        """Whether its prompt is behind it."""
        return self.computed >= self.prompt

    @property
    def capacity(self) -> int:
        """Tokens its buffer must hold."""
        return self.prompt + self.limit


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix; comparing slices keeps the work in C."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
