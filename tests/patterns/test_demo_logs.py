"""The demo logs: reproducible, read as intended, rich in patterns, and their planted secrets gone after redaction."""

import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from pipelines.patterns import features, merge, release
from pipelines.readers import read_file
from pipelines.redact import Redactor, redact_session
from schemas.recipe import PatternSettings
from schemas.session import Reject, Session

DATA = Path(__file__).parents[2] / "data"
LOGS = DATA / "usage"
PLANTED = json.loads((DATA / "planted.json").read_text(encoding="utf-8"))
SESSIONS = {"northwind_analytics": 16, "brightfork_dev": 17, "lumen_support": 15, "harbor_ops": 15}
RELEASED = {
    "customer_support/service/solo",
    "data_analysis/database/solo",
    "data_analysis/workspace/solo",
    "office/workspace/solo",
    "operations/workspace/solo",
    "operations/workspace/together",
    "software/workspace/solo",
    "software/workspace/together",
}
SUPPRESSED = {"customer_support/talk/solo", "research/web/solo", "research/web/together"}


@cache
def read() -> tuple[list[Session], list[Reject]]:
    sessions, rejects = [], []
    for path in sorted(p for p in LOGS.rglob("*") if p.is_file()):
        for found in read_file(path, root=LOGS, partner=path.relative_to(LOGS).parts[0]):
            (sessions if isinstance(found, Session) else rejects).append(found)
    return sessions, rejects


@cache
def redacted() -> list[Session]:
    return [redact_session(session) for session in read()[0]]


def spellings(value: str) -> set[str]:
    """The value as text, as a JSON string, and as a JSON string inside a JSON string."""
    once = json.dumps(value, ensure_ascii=False)[1:-1]
    return {value, once, json.dumps(once, ensure_ascii=False)[1:-1]}


def test_the_script_reproduces_the_committed_logs(tmp_path: Path) -> None:
    subprocess.run([sys.executable, DATA / "make_usage.py", tmp_path], check=True, timeout=60)
    made = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    kept = {p.relative_to(LOGS): p.read_bytes() for p in LOGS.rglob("*") if p.is_file()}
    assert made == kept
    assert sum(map(len, kept.values())) < 1_500_000


def test_sessions_and_rejects() -> None:
    sessions, rejects = read()
    assert Counter(s.partner for s in sessions) == SESSIONS
    assert len({s.session_id for s in sessions}) == 63
    by_partner = Counter((r.file or "").split("/")[0] for r in rejects)
    assert by_partner == {"northwind_analytics": 2, "brightfork_dev": 1, "lumen_support": 1}
    together = [s for s in sessions if len({m.agent for m in s.messages if m.role == "assistant"}) > 1]
    assert Counter(s.partner for s in together) == {"brightfork_dev": 5, "harbor_ops": 8}
    unanswered = [
        (s.file, at)
        for s in sessions
        for at, m in enumerate(s.messages)
        for number in range(len(m.tool_calls))
        if not any((r.answers_message, r.answers_call) == (at, number) for r in s.messages)
    ]
    assert unanswered == []


def test_every_planted_value_is_in_the_logs() -> None:
    text = "\n".join(p.read_text(encoding="utf-8") for p in LOGS.rglob("*") if p.is_file())
    missing = [p["name"] for p in PLANTED if not any(s in text for s in spellings(p["value"]))]
    assert missing == []
    assert {p["kind"] for p in PLANTED} == {
        "email",
        "phone",
        "ip",
        "card",
        "iban",
        "national_id",
        "home_path",
        "secret",
    }


def test_no_planted_value_survives_redaction() -> None:
    for session in redacted():
        text = session.model_dump_json()
        left = [p["name"] for p in PLANTED if any(s in text for s in spellings(p["value"]))]
        assert left == [], session.file


def test_redaction_takes_little_else() -> None:
    expected = {"".join(c for c in p["value"] if c not in " -()").lower() for p in PLANTED}
    found = set()
    for session in read()[0]:
        redactor = Redactor()
        for message in session.messages:
            redactor.redact(message.content or "")
        found |= {value for _, value in redactor.found}
    extra = {v for v in found if not any(e in v or v in e for e in expected)}
    assert extra == set()


def test_patterns_released_and_suppressed() -> None:
    groups: dict[str, list] = {}
    for session in redacted():
        found = features(session)
        groups.setdefault(found.key, []).append(found)
    patterns = {key: release(merge(rows), PatternSettings()) for key, rows in groups.items()}
    assert {key for key, pattern in patterns.items() if pattern} == RELEASED
    assert {key for key, pattern in patterns.items() if not pattern} == SUPPRESSED
    assert len({p.pattern_id for p in patterns.values() if p}) == len(RELEASED)
    text = "".join(p.model_dump_json() for p in patterns.values() if p)
    assert not any(name in text for name in (*SESSIONS, "session_"))
