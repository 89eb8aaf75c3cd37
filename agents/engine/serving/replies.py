"""What `app` needs of an engine and of an endpoint, and what the answers of both endpoints have in common."""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from agents.engine.base import Chunk, EngineMetrics, GenerateRequest, GenerateResult
from agents.engine.serving.schema import Generation
from agents.engine.tokenizer import ChatTokenizer

Answer = dict[str, Any]


class ServedEngine(Protocol):
    """An engine that tells of every step: `EmbeddedEngine`, or `fake.FakeEngine` in tests."""

    model: str
    context: int
    max_batch: int
    version: str
    tokenizer: ChatTokenizer

    async def generate(
        self, request: GenerateRequest, on_chunk: Callable[[Chunk], None] | None = None
    ) -> GenerateResult:
        """As `base.Engine`; `on_chunk` hears of every step on the caller's loop."""
        ...

    def release(self, conversation: str) -> None:
        """As `base.Engine`."""
        ...

    def metrics(self) -> EngineMetrics:
        """Counts and states."""
        ...


class Writer(Protocol):
    """Writes the answer to one body, whole or in chunks. Made anew for each request."""

    requests: list[GenerateRequest]
    names: tuple[str, str, str]
    """Beginning of the id, `object` of a whole answer, `object` of a chunk."""

    @property
    def body(self) -> Generation:
        """What was asked."""
        ...

    def first(self) -> list[Answer]:
        """Choices that open a stream."""
        ...

    def part(self, index: int, chunk: Chunk) -> list[Answer]:
        """Choices to send for one step of reply `index`; none when it shows nothing."""
        ...

    def last(self, index: int, result: GenerateResult) -> list[Answer]:
        """The last choices of reply `index`."""
        ...

    def whole(self, index: int, result: GenerateResult) -> Answer:
        """Reply `index` as one choice."""
        ...

    def prompt_ids(self) -> Sequence[int]:
        """Ids in front of the replies, before any of them has ended."""
        ...


class Head:
    """What every object of one answer begins with."""

    def __init__(self, prefix: str, model: str) -> None:
        self._fixed = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def answer(self, kind: str, version: str, choices: list[Answer], **more: Any) -> Answer:
        """One object, sampled by the weights `version`."""
        return {**self._fixed, "object": kind, "system_fingerprint": version, "choices": choices, **more}


def usage(results: Sequence[GenerateResult]) -> Answer:
    """Counts of all choices; the prompt counts once."""
    prompt = len(results[0].prompt_ids or ())
    sampled = sum(len(result.output_ids or ()) for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": max(result.cached_tokens for result in results)},
        "completion_tokens_details": {"reasoning_tokens": sum(result.reasoning_tokens for result in results)},
    }
