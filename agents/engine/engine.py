"""The embedded engine: `base.Engine` over threads that run steps. Made by `load`; called by `agents.swarm.policy`.

Requests join and leave between steps, so one that comes late does not wait for the others to end, and one that is
cancelled frees its place at once. A conversation stays with the thread that holds its keys and values.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable

from agents.engine.base import ChatTurn, GenerateRequest, GenerateResult
from agents.engine.effort import reply_budget
from agents.engine.grammar import Constraint
from agents.engine.models.llama import Llama
from agents.engine.runner import Runner
from agents.engine.scheduler import Scheduler
from agents.engine.sequence import Sequence
from agents.engine.tokenizer import ChatTokenizer
from agents.engine.worker import Worker
from schemas.errors import ContextFull, EngineRefused

KV_MEGABYTES = 1280
"""Default memory for keys and values, of running requests and of conversations between turns."""


class EmbeddedEngine:
    """A model in this process, decoded by `threads` threads (None: one per core)."""

    def __init__(
        self,
        name: str,
        version: str,
        model: Llama,
        tokenizer: ChatTokenizer,
        *,
        max_batch: int = 32,
        context: int = 4096,
        threads: int | None = None,
        kv_megabytes: int = KV_MEGABYTES,
    ) -> None:
        self.model = name
        self.context = min(context, model.shape.context)
        self.tokenizer = tokenizer
        count = min(threads or _cores(), max_batch)
        banned = sorted(tokenizer.control_ids - {tokenizer.eos_id})
        self._budget = kv_megabytes * 2**20 // model.kv_bytes_per_token // count
        self._workers = [
            Worker(
                Runner(model, banned),
                Scheduler(-(-max_batch // count), self._budget, model.new_kv),
                tokenizer,
                version,
            )
            for _ in range(count)
        ]
        self._homes: dict[str, Worker] = {}

    @property
    def steps(self) -> int:
        """Steps of all threads."""
        return sum(worker.steps for worker in self._workers)

    @property
    def sampled(self) -> int:
        """Tokens sampled."""
        return sum(worker.sampled for worker in self._workers)

    @property
    def prefilled(self) -> int:
        """Prompt tokens computed."""
        return sum(worker.prefilled for worker in self._workers)

    @property
    def cached(self) -> int:
        """Prompt tokens taken over instead of computed."""
        return sum(worker.cached for worker in self._workers)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """One reply. EngineRefused when the request is wrong, EngineUnavailable after `close`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[GenerateResult] = loop.create_future()

        def deliver(outcome: GenerateResult | Exception) -> None:
            # A loop that was closed meanwhile has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, future, outcome)

        sequence = self._sequence(request, deliver)
        worker = self._home(request.conversation)
        worker.add(sequence)
        worker.load += 1
        try:
            return await future
        finally:
            worker.load -= 1
            sequence.cancelled = not future.done() or future.cancelled()

    def _home(self, conversation: str) -> Worker:
        """The thread of a conversation: where it was before, else the one with the least to do."""
        least = min(self._workers, key=lambda worker: worker.load)
        return self._homes.setdefault(conversation, least)

    def release(self, conversation: str) -> None:
        """Drop state kept for a conversation: its memory is the first to be reused. Unknown names are fine."""
        worker = self._homes.pop(conversation, None)
        if worker is not None:
            worker.release(conversation)

    async def close(self) -> None:
        """End the threads; requests in flight get EngineUnavailable. Safe to call twice."""
        for worker in self._workers:
            await asyncio.to_thread(worker.close)

    def _sequence(self, request: GenerateRequest, deliver: Callable[[GenerateResult | Exception], None]) -> Sequence:
        ids = [*request.context_ids, *self._prefix(request)]
        sampling = request.sampling
        room = min(self.context, self._budget) - len(ids)
        if room < 1:
            raise ContextFull(f"the prompt has {len(ids)} tokens, the context {self.context}")
        if sampling.max_tokens < 1:
            raise EngineRefused(f"max_tokens is {sampling.max_tokens}")
        return Sequence(
            conversation=request.conversation,
            ids=ids,
            prompt=len(ids),
            context=len(request.context_ids),
            limit=min(reply_budget(sampling.effort, sampling.max_tokens), room),
            sampling=sampling,
            deliver=deliver,
            matcher=Constraint(self.tokenizer.constraint, request.grammar) if request.grammar is not None else None,
        )

    def _prefix(self, request: GenerateRequest) -> list[int]:
        messages: tuple[ChatTurn, ...] = request.messages
        if not messages or messages[-1].role == "assistant":
            raise EngineRefused("the last message must not be of the assistant")
        if not request.context_ids:
            return self.tokenizer.chat_prefix(messages, first=True, closed=True)
        replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not replies:
            raise EngineRefused("context_ids without a reply in the messages")
        closed = request.context_ids[-1] == self.tokenizer.eos_id
        return self.tokenizer.chat_prefix(messages[replies[-1] + 1 :], first=False, closed=closed)


def _resolve(future: "asyncio.Future[GenerateResult]", outcome: GenerateResult | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
