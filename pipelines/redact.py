"""Replaces personal data and secrets by typed placeholders such as `[EMAIL_1]`. Called before anything else looks at a
session: patterns, tasks and shards only ever see redacted text.

    Redactor().redact("mail ann@example.org")  ->  Redacted("mail [EMAIL_1]", {"EMAIL": 1})

One `Redactor` per session: the same value gets the same placeholder everywhere in it, and a value that is recognised in
one place is replaced in all places. Deterministic, and redacting redacted text changes nothing.
"""

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pipelines import personal_finders as personal
from pipelines import secret_finders as secret
from schemas.session import Message, Session, ToolCall, ToolSpec

# In this order: a key block may hold what looks like a password, a password what looks like an address.
FINDERS: tuple[tuple[str, Callable[[str], Iterator[tuple[int, int]]]], ...] = (
    ("SECRET", secret.find_private_keys),
    ("SECRET", secret.find_logins),
    ("SECRET", secret.find_keys),
    ("SECRET", secret.find_assigned),
    ("EMAIL", personal.find_emails),
    ("IBAN", personal.find_ibans),
    ("CARD", personal.find_cards),
    ("ID", personal.find_national_ids),
    ("PHONE", personal.find_phones),
    ("IP", personal.find_ips),
    ("HOME", personal.find_homes),
)
PLACEHOLDER = re.compile(r"\[(?:EMAIL|PHONE|IP|CARD|IBAN|ID|HOME|SECRET)_\d+\]")
# A shorter value replaced wherever it stands would hit ordinary words.
SHORTEST_EVERYWHERE = 6


@dataclass(frozen=True)
class Redacted:
    """Text without what was found in it, and how much of which kind was found."""

    text: str
    counts: dict[str, int]


@dataclass
class Redactor:
    """Placeholders of one session: `found` maps (kind, value without separators) to its number, `literals` the exact
    values to their placeholders."""

    found: dict[tuple[str, str], int] = field(default_factory=dict)
    literals: dict[str, str] = field(default_factory=dict)
    numbers: Counter[str] = field(default_factory=Counter)

    def redact(self, text: str) -> Redacted:
        """`text` with every find replaced, repeated until nothing more is found, so that a second run is a no-op."""
        counts: Counter[str] = Counter()
        while True:
            redacted = self._pass(text, counts)
            if redacted == text:
                return Redacted(text, dict(counts))
            text = redacted

    def everywhere(self, text: str) -> str:
        """`text` with the values found so far replaced wherever they stand, evidence beside them or not."""
        hits = [value for value in self.literals if value in text]
        for value in sorted(hits, key=lambda v: (-len(v), v)):
            text = text.replace(value, self.literals[value])
        return text

    def _pass(self, text: str, counts: Counter[str]) -> str:
        for kind, find in FINDERS:
            spans = sorted(set(find(text)))
            if spans:
                text = self._replace(text, kind, spans, counts)
        return text

    def _replace(self, text: str, kind: str, spans: list[tuple[int, int]], counts: Counter[str]) -> str:
        # A find that touches a placeholder is evidence around a value already replaced.
        taken = [edge for m in PLACEHOLDER.finditer(text) for edge in m.span()]
        parts, at = [], 0
        for start, end in spans:
            place = bisect_right(taken, start)
            if start < at or place % 2 or (place < len(taken) and taken[place] < end):
                continue
            parts += [text[at:start], self._placeholder(kind, text[start:end])]
            counts[kind] += 1
            at = end
        return "".join([*parts, text[at:]])

    def _placeholder(self, kind: str, value: str) -> str:
        key = (kind, re.sub(r"[\s\-()]", "", value).lower())
        if key not in self.found:
            self.numbers[kind] += 1
            self.found[key] = self.numbers[kind]
        placeholder = f"[{kind}_{self.found[key]}]"
        if len(value) >= SHORTEST_EVERYWHERE and not PLACEHOLDER.search(value):
            self.literals[value] = placeholder
        return placeholder


def redact(text: str) -> Redacted:
    """One text on its own."""
    return Redactor().redact(text)


def redact_session(session: Session) -> Session:
    """The session with every text in it redacted; ids, place in the input, roles, pairing and counts stay."""
    redactor = Redactor()
    first = _map_session(session, lambda text: redactor.redact(text).text)
    return _map_session(first, redactor.everywhere) if redactor.literals else first


def _map_session(session: Session, change: Callable[[str], str]) -> Session:
    def text(value: str | None) -> str | None:
        return None if value is None else change(value)

    def call(c: ToolCall) -> ToolCall:
        return c.model_copy(update={"name": change(c.name), "arguments_json": _map_json(c.arguments_json, change)})

    def message(m: Message) -> Message:
        return m.model_copy(
            update={
                "content": text(m.content),
                "reasoning": text(m.reasoning),
                "name": text(m.name),
                "agent": text(m.agent),
                "tool_calls": [call(c) for c in m.tool_calls],
            }
        )

    def tool(t: ToolSpec) -> ToolSpec:
        schema = None if t.parameters_json is None else _map_json(t.parameters_json, change)
        return ToolSpec(name=change(t.name), description=text(t.description), parameters_json=schema)

    return session.model_copy(
        update={
            "messages": [message(m) for m in session.messages],
            "tools": [tool(t) for t in session.tools],
            "source_id": text(session.source_id),
            "outcome": text(session.outcome),
        }
    )


def _map_json(text: str, change: Callable[[str], str]) -> str:
    """`change` applied to every string of a JSON text, and to the whole text when a value stands without quotes."""
    try:
        value = json.loads(text)
    except ValueError:
        return change(text)
    return json.dumps(_map_value(value, change), ensure_ascii=False)


def _map_value(value: Any, change: Callable[[str], str], name: str = "") -> Any:
    if isinstance(value, dict):
        return {change(k): _map_value(v, change, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_map_value(v, change, name) for v in value]
    if isinstance(value, bool) or value is None:
        return value
    return _map_scalar(value, change, name)


def _map_scalar(value: Any, change: Callable[[str], str], name: str) -> Any:
    # The name is evidence ("password": "hunter2"), so a value is looked at behind it.
    lead = f"{name}: "
    plain = value if isinstance(value, str) else repr(value)
    changed = change(lead + plain)
    changed = changed.removeprefix(lead) if changed.startswith(lead) else change(plain)
    return value if changed == plain else changed
