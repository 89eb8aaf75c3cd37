"""One request on its way through the engine. Shared by `scheduler`, `runner`, `worker` and `paused`; no torch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agents.engine.base import Alternative, Chunk, GenerateResult, Sampling
from agents.engine.effort import Reasoning
from agents.engine.reply import ReplyText

Finish = Literal["stop", "length"]
State = Literal["waiting", "running", "paused", "done"]

BLOCK = 16
"""Tokens of one block of keys and values."""


class Matcher(Protocol):
    """Where a reply stands in its grammar (`grammar.Constraint`)."""

    def forced(self, token: int, remaining: int) -> list[int]:
        """Move on by the sampled `token`, after which `remaining` fit; the ids that must follow it now."""
        ...


@dataclass(eq=False)
class Sequence:
    """Tokens of one conversation up to and with the reply being sampled.

    `ids[:computed]` have keys and values in the blocks; the rest waits for the next steps. `prompt`: length in front of
    the reply. `context`: how many of `ids` the request gave as ids of earlier calls. `limit`: most output tokens.
    `progress` hears of every step; `text` decodes the reply and `reasoning` counts its thinking; all three may be None.

    The scheduler alone sets what is between `state` and `mixed`. `table[i]` is the block of tokens [16 i, 16 i + 16) in
    layers with full attention, `window[i]` that in sliding-window layers (-1 where the window has left it behind; empty
    without such layers). Tokens before `kept` have full-attention keys and values that must not be written again (a
    replay). `mixed`: some keys and values are of older weights or out of a file, so none may be found by
    others.
    """

    conversation: str
    ids: list[int]
    prompt: int
    context: int
    limit: int
    sampling: Sampling
    deliver: Callable[[GenerateResult | Exception], None]
    priority: int = 0
    owner: str = ""
    grammar: str | None = None
    matcher: Matcher | None = None
    progress: Callable[[Chunk], None] | None = None
    text: ReplyText | None = None
    reasoning: Reasoning | None = None
    state: State = "waiting"
    computed: int = 0
    cached: int = 0
    kept: int = 0
    table: list[int] = field(default_factory=list)
    window: list[int] = field(default_factory=list)
    mixed: bool = False
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float | None] = field(default_factory=list)
    top: list[tuple[Alternative, ...]] = field(default_factory=list)
    versions: list[tuple[str, int]] = field(default_factory=list)

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
