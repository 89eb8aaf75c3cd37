"""Reasoning effort as a request parameter (S20): the share of the reply budget it gives, and of it for thinking.

`reply_budget` is called by both engines, `level` by the server, `Reasoning` by the worker: one for each reply without a
grammar of a model that thinks between two markers.

Reasoning tokens are the ids between the markers. Free text in front of a tool call is not among them: nothing in the
ids says where it ends, and the grammar bounds it already (`grammar.tool_call_grammar`). For a model without markers
there are none, and the length that S5 charges for is that of the whole reply, such text included
(`pipelines.scores.lengths`).
"""

from collections.abc import Sequence

LEAST = 16
"""Fewest tokens of a reply, so that even effort 1 can finish a short tool call."""

PRESETS = {"minimal": 25, "low": 50, "medium": 60, "high": 75, "max": 100}
"""Levels by name; low, high and max as in S5."""

_THINKING = 3, 4
"""Share of the reply budget that may be spent on thinking, so that an answer can follow."""


def level(effort: int | str) -> int:
    """The level 1-100 of a number or a preset's name. ValueError for anything else."""
    if isinstance(effort, str):
        if effort not in PRESETS:
            raise ValueError(f"effort {effort!r} is none of {', '.join(PRESETS)}")
        return PRESETS[effort]
    if isinstance(effort, bool) or not 1 <= effort <= 100:
        raise ValueError(f"effort {effort} is outside 1-100")
    return effort


def reply_budget(effort: int | None, max_tokens: int) -> int:
    """Tokens a reply may have: `effort` hundredths of `max_tokens`, at least 16 (never above `max_tokens`).

    None means no level was asked for: the whole budget. ValueError outside 1-100.
    """
    if effort is None:
        return max_tokens
    return min(max_tokens, max(LEAST, max_tokens * level(effort) // 100))


def reasoning_budget(effort: int | None, max_tokens: int) -> int | None:
    """Tokens a reply may spend on thinking: three quarters of its budget, so that an answer can follow.

    None: no level was asked for, and nothing but `max_tokens` bounds it. ValueError outside 1-100.
    """
    if effort is None:
        return None
    part, whole = _THINKING
    return reply_budget(effort, max_tokens) * part // whole


class Reasoning:
    """Counts what one reply spends on thinking, and ends it when its budget is spent.

    `opening` and `closing`: the ids of the markers (`tokenizer.encode("<think>")`); an empty `opening` is of a model
    whose prompt ends with it, so that the reply begins inside. `budget`: most ids between them, None for no bound.
    Markers are known by these very ids. `tokens`: ids between them so far.
    """

    def __init__(self, opening: Sequence[int], closing: Sequence[int], budget: int | None) -> None:
        """ValueError without a closing marker."""
        if not closing:
            raise ValueError("reasoning needs a closing marker")
        self.tokens = 0
        self.thinking = not opening
        self._opening, self._closing, self._budget = list(opening), list(closing), budget
        self._recent: list[int] = []
        self._due = 0

    def feed(self, token: int) -> list[int]:
        """Count one id of the reply, sampled or forced. The ids that must come next, to be fed in their turn: what is
        missing of the closing marker, when the budget is spent."""
        self._due = max(0, self._due - 1)
        marker = self._closing if self.thinking else self._opening
        self._recent = [*self._recent, token][-max(len(self._opening), len(self._closing)) :]
        self.tokens += self.thinking
        if marker and self._recent[-len(marker) :] == marker:
            self.tokens -= len(marker) if self.thinking else 0
            self.thinking, self._recent = not self.thinking, []
        if not self.thinking or self._due or self._budget is None or self.tokens < self._budget:
            return []
        missing = self._closing[self._written() :]
        self._due = len(missing)
        return missing

    def _written(self) -> int:
        """How much of the closing marker stands at the end already."""
        longest = min(len(self._recent), len(self._closing) - 1)
        return next((n for n in range(longest, 0, -1) if self._recent[-n:] == self._closing[:n]), 0)
