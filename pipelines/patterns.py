"""What a session contributes to a usage pattern, how contributions add up, and when the sum may be released.

Pure functions for a thin Beam transform: `features` per redacted session, `merge` per key, `release` at the end.

Everything counted stands in a cell ("call:shell", "step:search>edit_file", "turns:8") with its support: for each
partner the sessions in which it was seen and the times seen. Support is kept until release, so that k-anonymity holds
for every cell and not only for the pattern as a whole. What leaves is a `UsagePattern`: counts over fixed vocabularies.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Literal

from pipelines.categories import call_category, domain_of
from schemas.errors import StageError
from schemas.ids import canonical_json, content_id
from schemas.pattern import Bucket, Category, CategoryCount, Domain, Transition, UsagePattern
from schemas.pattern_views import bucket_value
from schemas.recipe import PatternSettings
from schemas.session import Message, Session

Lead = Literal["workspace", "database", "service", "web", "talk"]
Support = dict[str, tuple[int, int]]
"""Partner (hashed) → sessions with the cell, times it was seen in them."""

# What most calls of a session work on. Planning, delegating and talking accompany every kind of work.
LEADS: dict[Category, Lead] = {
    **dict.fromkeys(("read_file", "write_file", "edit_file", "search", "shell", "run_code"), "workspace"),
    "database": "database",
    "look_up": "service",
    "transact": "service",
    "web": "web",
}
HISTOGRAMS = ("turns", "calls", "tokens", "errors", "recoveries")
ERROR_START = re.compile(
    r"\s*(?:<tool_use_error>"
    r"|(?:[A-Za-z_.]*(?:error|exception)|fatal|failed|failure)\b(?![\w ]*[:=] ?(?:0|none|null)\b)"
    r"|\{\s*\"(?:error|exception)\":(?!\s*(?:null|false|\"\"|\[\]|\{\}))"
    r"|[^\n]{0,120}: (?:command not found|no such file or directory|permission denied)"
    r"|permission denied|command timed out|[^\n]{0,80}\bfailed because\b)",
    re.IGNORECASE,
)
ERROR_INSIDE = re.compile(
    r"Traceback \(most recent call last\)|: command not found\s*$|(?:exit|return) ?code:? ?[1-9]|<returncode>[1-9]",
    re.MULTILINE,
)
LOOKED_AT = 20_000


@dataclass(frozen=True)
class Features:
    """Counts of one or more sessions with the same key. Private: holds session ids and hashed partners, no text."""

    domain: Domain
    lead: Lead
    together: bool
    sessions: tuple[str, ...]
    """Ids, sorted."""
    cells: dict[str, Support]

    @property
    def key(self) -> str:
        """What is merged together, e.g. "software/workspace/solo"."""
        return f"{self.domain}/{self.lead}/{'together' if self.together else 'solo'}"

    def to_json(self) -> bytes:
        """Canonical JSON: equal features give equal bytes."""
        return canonical_json(
            {
                "domain": self.domain,
                "lead": self.lead,
                "together": self.together,
                "sessions": self.sessions,
                "cells": self.cells,
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> "Features":
        """The inverse of `to_json`."""
        value = json.loads(data)
        cells = {cell: {p: (n, t) for p, (n, t) in support.items()} for cell, support in value.pop("cells").items()}
        return cls(sessions=tuple(value.pop("sessions")), cells=cells, **value)


def features(session: Session) -> Features:
    """What a redacted session contributes."""
    calls = list(_calls(session.messages))
    categories = Counter(call.category for call in calls)
    errors = [call for call in calls if call.failed]
    recovered = sum(
        any(o.place > e.place and o.category == e.category and o.answered_well for o in calls) for e in errors
    )
    values = {
        "turns": sum(m.role == "assistant" for m in session.messages),
        "calls": len(calls),
        "tokens": _tokens(session),
        "errors": len(errors),
        "recoveries": recovered,
    }
    seen: Counter[str] = Counter({f"call:{category}": n for category, n in categories.items()})
    seen.update(f"step:{a}>{b}" for a, b in _steps(calls))
    seen.update(f"{name}:{bucket_low(value)}" for name, value in values.items())
    seen["all"] = 1
    partner = content_id("partner", session.partner)
    speakers = {m.agent for m in session.messages if m.role == "assistant"}
    return Features(
        domain=domain_of(session, categories),
        lead=_lead(categories),
        together=len(speakers) > 1,
        sessions=(session.session_id,),
        cells={cell: {partner: (1, times)} for cell, times in seen.items()},
    )


def merge(parts: Iterable[Features]) -> Features:
    """The sum of contributions with one key; order and grouping do not matter.

    StageError when there are none, when keys differ, or when a session would count twice.
    """
    parts = list(parts)
    if len({part.key for part in parts}) != 1:
        raise StageError("features of exactly one key can be merged")
    sessions = sorted(session for part in parts for session in part.sessions)
    if len(set(sessions)) != len(sessions):
        raise StageError("the same session was given twice to one pattern")
    cells: dict[str, Support] = {}
    for part in parts:
        for cell, support in part.cells.items():
            into = cells.setdefault(cell, {})
            for partner, (n, times) in support.items():
                before = into.get(partner, (0, 0))
                into[partner] = (before[0] + n, before[1] + times)
    first = parts[0]
    return Features(first.domain, first.lead, first.together, tuple(sessions), cells)


def release(merged: Features, settings: PatternSettings) -> UsagePattern | None:
    """The pattern, or None when fewer than k sessions or k' partners support it.

    A tool category or transition below k or k' is left out. Histogram buckets are grouped until each group reaches
    both, and a group stands at the bucket nearest to its mean (microaggregation, Domingo-Ferrer and Torra 2005).
    """
    if not _enough([merged.cells["all"]], settings):
        return None
    kept = {cell: support for cell, support in merged.cells.items() if _enough([support], settings)}
    categories = [
        CategoryCount(category=cell.removeprefix("call:"), count=_times(support))  # type: ignore[arg-type]
        for cell, support in sorted(kept.items())
        if cell.startswith("call:")
    ]
    transitions = []
    for cell, support in sorted(kept.items()):
        if cell.startswith("step:"):
            source, target = cell.removeprefix("step:").split(">")
            transitions.append(Transition(source=source, target=target, count=_times(support)))  # type: ignore[arg-type]
    histograms = {name: _histogram(merged.cells, name, settings) for name in HISTOGRAMS}
    content = {
        "domain": merged.domain,
        "categories": categories,
        "transitions": transitions,
        **histograms,
        "agents_together": merged.together,
        "sessions": _sessions(merged.cells["all"]),
        "partners": len(merged.cells["all"]),
    }
    draft = UsagePattern(pattern_id="", support_hash=support_hash(merged.sessions), **content)  # type: ignore[arg-type]
    counted = draft.model_dump(exclude={"pattern_id", "support_hash"})
    return draft.model_copy(update={"pattern_id": content_id("pattern", counted)})


def support_hash(sessions: Iterable[str]) -> str:
    """32 hex digits of blake2b over the sorted session ids."""
    return blake2b(canonical_json(sorted(sessions)), digest_size=16).hexdigest()


def bucket_low(value: int) -> int:
    """Smallest value of the bucket that holds `value`: 0, 1, 2, 4, 8, ..."""
    return 1 << (value.bit_length() - 1) if value > 0 else 0


@dataclass(frozen=True)
class _Call:
    place: int
    agent: str | None
    category: Category
    failed: bool
    answered_well: bool


def _calls(messages: list[Message]) -> Iterator[_Call]:
    """Tool calls in order, each with what its result says; a call without a result neither failed nor went well."""
    results = {(m.answers_message, m.answers_call): m for m in messages if m.role == "tool"}
    place = 0
    for at, message in enumerate(messages):
        for number, call in enumerate(message.tool_calls):
            result = results.get((at, number))
            failed = result is not None and reports_error(result)
            yield _Call(place, message.agent, call_category(call), failed, result is not None and not failed)
            place += 1


def reports_error(result: Message) -> bool:
    """Whether a tool result is a failure: by its flag, else when its text plainly says so."""
    if result.is_error is not None:
        return result.is_error
    text = result.content or ""
    return bool(ERROR_START.match(text) or ERROR_INSIDE.search(text, 0, LOOKED_AT))


def _steps(calls: list[_Call]) -> Iterator[tuple[Category, Category]]:
    """Each agent's own sequence, so that two agents that take turns do not look like one that jumps."""
    for agent in sorted({call.agent or "" for call in calls}):
        own = [call.category for call in calls if (call.agent or "") == agent]
        yield from pairwise(own)


def _lead(categories: Counter[Category]) -> Lead:
    leads: Counter[Lead] = Counter()
    for category, n in categories.items():
        if category in LEADS:
            leads[LEADS[category]] += n
    return min(leads, key=lambda lead: (-leads[lead], lead)) if leads else "talk"


def _tokens(session: Session) -> int:
    if session.input_tokens is not None and session.output_tokens is not None:
        return session.input_tokens + session.output_tokens
    texts = (m.content for m in session.messages)
    calls = (c.name + c.arguments_json for m in session.messages for c in m.tool_calls)
    return (sum(len(t) for t in texts if t) + sum(map(len, calls))) // 4


def _sessions(support: Support) -> int:
    return sum(n for n, _ in support.values())


def _times(support: Support) -> int:
    return sum(times for _, times in support.values())


def _enough(supports: Iterable[Support], settings: PatternSettings) -> bool:
    """k sessions, k' partners, and something left to hide in for each partner when another subtracts its own."""
    by_partner: Counter[str] = Counter()
    for support in supports:
        by_partner.update({partner: n for partner, (n, _) in support.items()})
    sessions, largest = by_partner.total(), max(by_partner.values(), default=0)
    others = settings.min_others if settings.min_partners > 1 else 0
    return (
        sessions >= settings.min_sessions and len(by_partner) >= settings.min_partners and sessions - largest >= others
    )


def _histogram(cells: dict[str, Support], name: str, settings: PatternSettings) -> list[Bucket]:
    buckets = sorted(
        (int(cell.partition(":")[2]), support) for cell, support in cells.items() if cell.startswith(f"{name}:")
    )
    groups: list[list[tuple[int, Support]]] = [[]]
    for bucket in buckets:
        if _enough((support for _, support in groups[-1]), settings):
            groups.append([])
        groups[-1].append(bucket)
    if len(groups) > 1 and not _enough((support for _, support in groups[-1]), settings):
        rest = groups.pop()
        groups[-1] += rest
    return [Bucket(low=_centre(group), count=sum(_sessions(s) for _, s in group)) for group in groups]


def _centre(group: list[tuple[int, Support]]) -> int:
    """Low end of the bucket nearest to the group's mean, the higher one of two as near."""
    sessions = sum(_sessions(support) for _, support in group)
    mean = sum(bucket_value(low) * _sessions(support) for low, support in group) / sessions
    lows = [0, *(1 << bit for bit in range(group[-1][0].bit_length()))]
    return min(lows, key=lambda low: (abs(bucket_value(low) - mean), -low))
