"""The embedded engine: `base.Engine` over one thread that runs steps. Made by `load`; called by `agents.swarm.policy`.

A step is schedule -> run -> settle. Requests join and leave between steps, so one that comes late does not wait for the
others to end, and one that is cancelled frees its place at once.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable

import torch

from agents.engine.base import ChatTurn, GenerateRequest, GenerateResult
from agents.engine.effort import reply_budget
from agents.engine.grammar import Constraint
from agents.engine.models.llama import Llama
from agents.engine.runner import Runner
from agents.engine.sampler import Draw
from agents.engine.scheduler import Scheduler
from agents.engine.sequence import Finish, Sequence
from agents.engine.tokenizer import ChatTokenizer
from schemas.errors import EngineError, EngineRefused, EngineUnavailable

KV_MEGABYTES = 1280
"""Default memory for keys and values, of running requests and of conversations between turns."""


class EmbeddedEngine:
    """A model in this process. `steps`, `sampled`, `prefilled` and `cached` count work done, in steps and tokens."""

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
        self.steps = self.sampled = self.prefilled = self.cached = 0
        self._version = version
        self._threads = threads
        self._runner = Runner(model, sorted(tokenizer.control_ids - {tokenizer.eos_id}))
        budget = kv_megabytes * 2**20 // model.kv_bytes_per_token
        self._scheduler = Scheduler(max_batch, budget, model.new_kv)
        self._wake = threading.Condition()
        self._inbox: list[Callable[[], None]] = []
        self._closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """One reply. EngineRefused when the request is wrong, EngineUnavailable after `close`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[GenerateResult] = loop.create_future()

        def deliver(outcome: GenerateResult | Exception) -> None:
            # A loop that was closed meanwhile has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, future, outcome)

        sequence = self._sequence(request, deliver)
        self._post(lambda: self._scheduler.add(sequence))
        try:
            return await future
        finally:
            sequence.cancelled = not future.done() or future.cancelled()

    def release(self, conversation: str) -> None:
        """Drop state kept for a conversation: its memory is the first to be reused. Unknown names are fine."""
        with self._wake:
            if not self._closing and self._failure is None:
                self._inbox.append(lambda: self._scheduler.blocks.release(conversation))
                self._wake.notify()

    async def close(self) -> None:
        """End the thread; requests in flight get EngineUnavailable. Safe to call twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _sequence(self, request: GenerateRequest, deliver: Callable[[GenerateResult | Exception], None]) -> Sequence:
        ids = [*request.context_ids, *self._prefix(request)]
        sampling = request.sampling
        room = min(self.context, self._scheduler.blocks.budget) - len(ids)
        if room < 1:
            raise EngineRefused(f"the prompt has {len(ids)} tokens, the context {self.context}")
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

    def _post(self, action: Callable[[], None]) -> None:
        """Have the engine's thread do something between steps."""
        with self._wake:
            if self._closing or self._failure is not None:
                raise EngineUnavailable(f"the engine has stopped: {self._failure or 'closed'}")
            self._inbox.append(action)
            self._wake.notify()

    def _loop(self) -> None:
        torch.set_num_threads(self._threads or _cores())
        try:
            while self._next():
                self._step()
            raise EngineUnavailable("the engine was closed")
        except Exception as error:  # noqa: BLE001 - whatever ends the thread must reach those who wait for it
            failure = error if isinstance(error, EngineError) else EngineError(f"the engine failed: {error!r}")
            with self._wake:
                self._failure = failure
                for action in self._inbox:
                    action()
            for sequence in self._scheduler.drain():
                sequence.deliver(failure)

    def _next(self) -> bool:
        """Take in what was posted; wait while there is nothing to do. False when the engine closes."""
        with self._wake:
            while not (self._inbox or self._closing or self._scheduler.busy):
                self._wake.wait()
            actions, self._inbox = self._inbox, []
            for action in actions:
                action()
            return not self._closing

    def _step(self) -> None:
        slices = self._scheduler.schedule()
        if not slices:
            return
        self.steps += 1
        self.prefilled += sum(part.count for part in slices if not part.sequence.replying)
        for sequence, drawn in self._runner.run(slices):
            self._settle(sequence, drawn)

    def _settle(self, sequence: Sequence, drawn: Draw) -> None:
        """Append what was sampled and what the grammar forces after it; deliver the reply when it is whole."""
        try:
            forced = sequence.matcher.forced(drawn.token) if sequence.matcher else []
        except EngineRefused as error:
            self._scheduler.finish(sequence)
            sequence.deliver(error)
            return
        for token, logprob in [(drawn.token, drawn.logprob), *((token, 0.0) for token in forced)]:
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)
            self.sampled += 1
            finish = self._finish(sequence)
            if finish is not None:
                self.cached += sequence.cached
                self._scheduler.finish(sequence)
                sequence.deliver(self._result(sequence, finish))
                return

    def _finish(self, sequence: Sequence) -> Finish | None:
        if sequence.ids[-1] == self.tokenizer.eos_id:
            return "stop"
        if sequence.sampling.stop and self._stop_at(sequence) is not None:
            return "stop"
        return "length" if len(sequence.ids) - sequence.prompt >= sequence.limit else None

    def _stop_at(self, sequence: Sequence) -> int | None:
        text = self.tokenizer.decode(sequence.output)
        places = [place for stop in sequence.sampling.stop if (place := text.find(stop)) >= 0]
        return min(places, default=None)

    def _result(self, sequence: Sequence, finish: Finish) -> GenerateResult:
        return GenerateResult(
            text=self.tokenizer.decode(sequence.output)[: self._stop_at(sequence)],
            finish_reason=finish,
            prompt_ids=tuple(sequence.ids[sequence.context : sequence.prompt]),
            output_ids=tuple(sequence.output),
            logprobs=tuple(sequence.logprobs),
            policy_version=self._version,
            cached_tokens=sequence.cached,
        )


def _resolve(future: "asyncio.Future[GenerateResult]", outcome: GenerateResult | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
