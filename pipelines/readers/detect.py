"""Which reader understands a file, and the way from a file to sessions and rejects. Called by the ingest stage."""

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic_core import to_json

from pipelines.readers import claude_code, openai_chat, openai_responses, otel, sharegpt, swe_agent
from pipelines.readers.common import BadRecord, Draft, mapping, problem_of, word
from pipelines.readers.files import relative_name
from pipelines.readers.parse import Problem, Value
from pipelines.readers.values import HEAD_BYTES, QUICK_BYTES, Head, read_head, read_values
from schemas.ids import content_id
from schemas.session import Reject, Session

READERS: tuple[ModuleType, ...] = (claude_code, openai_responses, swe_agent, otel, sharegpt, openai_chat)
"""In the order they are asked. Each has NAME, matches(value) and read(values)."""
STAGE = "ingest"


def detect(path: Path) -> str | None:
    """Name of the format of a file, told by the shape of its first records; null when no reader knows it."""
    reader, _ = _look(path)
    return str(reader.NAME) if reader else None


def read_file(path: Path, *, root: Path, partner: str, partner_field: str | None = None) -> Iterator[Session | Reject]:
    """Sessions of a file, and a reject for whatever in it could not be read.

    `partner_field` names a field of a record (a dotted path) that overrides `partner`. Nothing is raised for what a
    file holds; a file of no known format, an empty one and an unreadable one are one reject each.
    """
    file = relative_name(path, root)
    try:
        reader, head = _look(path)
        if reader is None:
            reason, detail = ("empty_file", "The file is empty.") if head.empty else _UNKNOWN
            yield _reject(file, None, Problem(reason, detail))
            return
        for found in _run(reader, path, head):
            if isinstance(found, Problem):
                yield _reject(file, reader.NAME, found)
            elif not found.messages:
                yield _reject(file, reader.NAME, _silent(found))
            else:
                yield _session(found, file, reader.NAME, _named(found.at.value, partner_field) or partner)
    except OSError:
        yield _reject(file, None, Problem("unreadable", "The system does not let the file be read."))


_UNKNOWN = ("unknown_format", "No reader knows the shape of its first records.")


def _look(path: Path) -> tuple[ModuleType | None, Head]:
    """The reader that the first record it knows decides on, and the head that showed it."""
    for size in (QUICK_BYTES, HEAD_BYTES):
        head = read_head(path, size)
        for value in head.values:
            for reader in READERS:
                if reader.matches(value):
                    return reader, head
    return None, head


def _run(reader: ModuleType, path: Path, head: Head) -> Iterator[Draft | Problem]:
    """What a reader makes of the values of a file, with the problems of the file itself in their place."""
    problems: list[Problem] = []

    def values() -> Iterator[Value]:
        for found in read_values(path, head.layout):
            if isinstance(found, Problem):
                problems.append(found)
            else:
                yield found

    for made in reader.read(values()):
        yield from problems
        problems.clear()
        yield made
    yield from problems


def _silent(draft: Draft) -> Problem:
    bad = BadRecord("no_conversation", "It holds no messages.", draft.place)
    return problem_of(bad, draft.at)


def _named(record: Any, field: str | None) -> str | None:
    """The partner that a record names in `field`: the field as it is written, else as a dotted path."""
    if field is None:
        return None
    value = mapping(record).get(field)
    if value is None:
        value = record
        for part in field.split("."):
            value = mapping(value).get(part)
    return word(value)


def _session(draft: Draft, file: str, name: str, partner: str) -> Session:
    position = draft.position or draft.at.position
    digest = blake2b(to_json(draft.messages), digest_size=16).hexdigest()
    return Session(
        session_id=content_id("session", partner, name, file, position, digest),
        partner=partner,
        format=name,
        file=file,
        position=position,
        source_id=draft.source_id,
        model=draft.model,
        tools=list(draft.tools),
        messages=draft.messages,
        reward=draft.reward,
        outcome=draft.outcome,
        input_tokens=draft.input_tokens,
        output_tokens=draft.output_tokens,
    )


def _reject(file: str, name: str | None, problem: Problem) -> Reject:
    parts = (STAGE, file, name, problem.line, problem.byte_offset, problem.field, problem.reason)
    return Reject(
        reject_id=content_id("reject", *parts),
        stage=STAGE,
        file=file,
        format=name,
        line=problem.line,
        byte_offset=problem.byte_offset,
        field=problem.field,
        reason=problem.reason,
        detail=problem.detail,
    )
