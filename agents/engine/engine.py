"""The embedded engine: `base.Engine` over threads that run steps. Made by `load`; called by `agents.swarm.policy`.

Requests join and leave between steps, so one that comes late does not wait for the others to end, and one that is
cancelled frees its place at once. A conversation stays with the thread that holds its keys and values.
"""

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial

from agents.engine import files, weights
from agents.engine.base import ChatTurn, Chunk, EngineMetrics, GenerateRequest, GenerateResult, Sampling
from agents.engine.effort import Reasoning, reasoning_budget, reply_budget
from agents.engine.grammar import Constraint
from agents.engine.models.llama import Llama
from agents.engine.paused import Paused
from agents.engine.reply import ReplyText
from agents.engine.runner import Runner
from agents.engine.scheduler import Scheduler
from agents.engine.sequence import BLOCK, Sequence
from agents.engine.tokenizer import ChatTokenizer
from agents.engine.worker import Worker
from schemas.errors import ConfigError, ContextFull, EngineRefused

OnChunk = Callable[[Chunk], None]
Outcome = GenerateResult | Exception


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
        kv_megabytes: int = 1280,
    ) -> None:
        self.model, self.version, self.tokenizer = name, version, tokenizer
        if tokenizer.vocab_size > model.shape.vocab_size:
            raise ConfigError(f"{name}: the tokenizer has more tokens than the model, {tokenizer.vocab_size}")
        self.context = min(context, model.shape.context)
        self.max_batch = max_batch
        count = min(threads or _cores(), max_batch)
        # Control tokens, and rows that a checkpoint's vocabulary has for no token.
        unknown = range(tokenizer.vocab_size, model.shape.vocab_size)
        banned = sorted({*tokenizer.control_ids, *unknown} - {tokenizer.eos_id})
        self._loaded = model
        self._workers = [
            self._worker(-(-max_batch // count), kv_megabytes * 2**20 // count, banned) for _ in range(count)
        ]
        self._room = min(worker.scheduler.capacity_tokens for worker in self._workers)
        self._homes: dict[str, Worker] = {}

    def _worker(self, max_batch: int, kv_bytes: int, banned: list[int]) -> Worker:
        model, window = self._loaded, self._loaded.shape.window
        window_blocks = 0 if window is None else 2 * max_batch * (window // BLOCK + 2)
        one = model.new_cache(1, 1)
        left = kv_bytes - window_blocks * one.window.data.nbytes
        # Without layers with full attention blocks are only names, of which every sequence needs some.
        names = 2 * max_batch * self.context // BLOCK
        blocks = left // one.full.data.nbytes if one.full.data.nbytes else names
        if left < 0 or blocks < 1:
            raise ConfigError(f"keys and values of {max_batch} sequences do not fit {kv_bytes // 2**20} MB")
        scheduler = Scheduler(max_batch, blocks, window=window, window_blocks=window_blocks)
        cache = model.new_cache(blocks, window_blocks)
        eos_id = self.tokenizer.eos_id
        return Worker(Runner(model, cache, banned, eos_id), scheduler, eos_id, self.version)

    async def generate(self, request: GenerateRequest, on_chunk: OnChunk | None = None) -> GenerateResult:
        """One reply; `on_chunk` hears of every step, on the caller's event loop.

        EngineRefused when the request is wrong, EngineUnavailable after `close`, GenerationPaused after `pause`.
        """
        # Compiling a grammar takes a tenth of a second and more: not on the caller's event loop.
        prepare = asyncio.to_thread(self._sequence, request) if request.grammar is not None else None
        sequence = await prepare if prepare is not None else self._sequence(request)
        worker = self._home(request.conversation)
        return await self._answer(worker, sequence, on_chunk, lambda: worker.add(sequence))

    async def pause(self, conversation: str) -> Paused:
        """Stop the conversation's request at the next token boundary. Its state can be continued without prefill, by
        `continue_paused`: here, in another process, or after `swap_weights`. EngineRefused when none is in flight."""
        worker = self._homes.get(conversation)
        if worker is None:
            raise EngineRefused(f"conversation {conversation!r} has no request in flight")
        return await asyncio.wrap_future(worker.call(partial(worker.pause, conversation)))

    async def continue_paused(self, state: Paused, on_chunk: OnChunk | None = None) -> GenerateResult:
        """The whole reply of a paused request, from where it stopped. EngineRefused when the state is of another model
        or not whole, ContextFull when it does not fit."""
        self._check(state)
        sequence = await asyncio.to_thread(self._continued, state)
        worker = self._home(state.conversation)
        return await self._answer(worker, sequence, on_chunk, lambda: worker.restore(sequence, state))

    async def swap_weights(self, model: str, version: str) -> None:
        """Sample from other weights of the same shape from the next step on, under the name `version`.

        Requests in flight go on with the keys and values they have; nothing else computed before is used again.
        ConfigError when the shape differs.
        """
        old = self._loaded
        new = await asyncio.to_thread(_load_like, old, model)
        same = new.kv_layout == old.kv_layout and new.shape.vocab_size == old.shape.vocab_size
        if not same or new.shape.context < self.context:
            raise ConfigError(f"{model} has another shape than the weights in use")
        self._loaded, self.version = new, version
        calls = [worker.call(partial(worker.swap, new, version)) for worker in self._workers if worker.alive]
        await asyncio.gather(*map(asyncio.wrap_future, calls))

    def metrics(self) -> EngineMetrics:
        """Counts of all threads together."""
        parts = [worker.scheduler.metrics for worker in self._workers]
        own = {"steps": sum(w.steps for w in self._workers), "sampled": sum(w.sampled for w in self._workers)}
        rest = [field.name for field in fields(EngineMetrics) if field.name not in own]
        return EngineMetrics(**own, **{name: sum(getattr(part, name) for part in parts) for name in rest})

    @property
    def kv_bytes_per_token(self) -> float:
        """Memory of one token's keys and values."""
        return self._loaded.kv_bytes_per_token

    def release(self, conversation: str) -> None:
        """Drop state kept for a conversation: its memory is the first to be reused. Unknown names are fine."""
        worker = self._homes.pop(conversation, None)
        if worker is not None:
            worker.release(conversation)

    async def close(self) -> None:
        """End the threads; requests in flight get EngineUnavailable. Safe to call twice."""
        for worker in self._workers:
            await asyncio.to_thread(worker.close)

    async def _answer(
        self, worker: Worker, sequence: Sequence, on_chunk: OnChunk | None, post: Callable[[], None]
    ) -> GenerateResult:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[GenerateResult] = loop.create_future()

        def deliver(outcome: Outcome) -> None:
            # A loop that was closed meanwhile has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, future, outcome)

        def progress(chunk: Chunk) -> None:
            if on_chunk is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(on_chunk, chunk)

        sequence.deliver = deliver
        sequence.progress = progress if on_chunk is not None else None
        post()
        worker.load += 1
        try:
            return await future
        finally:
            worker.load -= 1
            if not future.done() or future.cancelled():
                worker.cancel(sequence)

    def _home(self, conversation: str) -> Worker:
        """The thread of a conversation: where it was before, else the one with the least to do."""
        home = self._homes.get(conversation)
        if home is None or not home.alive:
            # One that has failed is asked only when all have: it says why.
            home = min(self._workers, key=lambda worker: (not worker.alive, worker.load))
            self._homes[conversation] = home
        return home

    def _sequence(self, request: GenerateRequest) -> Sequence:
        ids = [*request.context_ids, *self._prefix(request)]
        sampling = request.sampling
        room = min(self.context, self._room) - len(ids)
        if room < 1:
            raise ContextFull(f"the prompt has {len(ids)} tokens, the context {min(self.context, self._room)}")
        _check_sampling(sampling)
        self._check_ids(ids)
        return Sequence(
            conversation=request.conversation,
            ids=ids,
            prompt=len(ids),
            context=len(request.context_ids),
            limit=min(reply_budget(sampling.effort, sampling.max_tokens), room),
            sampling=sampling,
            deliver=_nobody,
            priority=request.priority,
            owner=request.owner,
            grammar=request.grammar,
            matcher=self._matcher(request.grammar),
            text=ReplyText(self.tokenizer.decode, sampling.stop),
            reasoning=self._reasoning(request.grammar, sampling),
        )

    def _check_ids(self, ids: Iterable[int]) -> None:
        last = self._loaded.shape.vocab_size - 1
        if not all(0 <= token <= last for token in ids):
            raise EngineRefused(f"a token id is outside 0-{last}")

    def _check(self, state: Paused) -> None:
        """A file from elsewhere is believed nothing that memory depends on."""
        if state.layout != self._loaded.kv_layout:
            raise EngineRefused(f"the state is for keys and values of {state.layout}, not {self._loaded.kv_layout}")
        whole = (state.prompt, state.context, state.limit, state.computed, state.cached, state.priority)
        texts = (state.conversation, state.owner, state.grammar or "")
        if not (_are(int, *whole, *state.ids, *state.window_at) and _are(str, *texts)):
            raise EngineRefused("the state has values of wrong types")
        if not all(isinstance(logprob, int | float) for logprob in state.logprobs):
            raise EngineRefused("the state has logprobs that are no numbers")
        _check_sampling(state.sampling)
        self._check_ids(state.ids)
        sampled = len(state.ids) - state.prompt
        if not (0 <= state.context <= state.prompt >= 1 and 0 <= state.computed < len(state.ids)):
            raise EngineRefused("the state's lengths contradict each other")
        if not 0 <= sampled < state.limit or {len(state.logprobs), len(state.raw_logprobs), len(state.top)} != {
            sampled
        }:
            raise EngineRefused("the state's reply is not what its lengths say")
        if state.prompt + state.limit > min(self.context, self._room):
            raise ContextFull(f"the request needs {state.prompt + state.limit} tokens, the context is {self.context}")

    def _continued(self, state: Paused) -> Sequence:
        matcher = self._matcher(state.grammar)
        if matcher is not None:
            matcher.replay(list(state.ids[state.prompt :]))
        text = ReplyText(self.tokenizer.decode, state.sampling.stop)
        reasoning = self._reasoning(state.grammar, state.sampling)
        for token in state.ids[state.prompt :]:
            text.feed(token)
            if reasoning is not None:
                reasoning.feed(token)
        text.fresh(last=False)
        return Sequence(
            conversation=state.conversation,
            ids=list(state.ids),
            prompt=state.prompt,
            context=state.context,
            limit=state.limit,
            sampling=state.sampling,
            deliver=_nobody,
            priority=state.priority,
            owner=state.owner,
            grammar=state.grammar,
            matcher=matcher,
            text=text,
            reasoning=reasoning,
            state="paused",
            mixed=True,  # what a file brings is this request's own: nobody else may find it by its ids
            computed=state.computed,
            cached=state.cached,
            logprobs=list(state.logprobs),
            raw_logprobs=list(state.raw_logprobs),
            top=list(state.top),
            versions=list(state.versions),
        )

    def _reasoning(self, grammar: str | None, sampling: Sampling) -> Reasoning | None:
        """Counts thinking, and bounds it when an effort was asked for. A grammar alone says what comes next."""
        if grammar is not None:
            return None
        opening, closing = (self.tokenizer.encode(marker) for marker in ("<think>", "</think>"))
        return Reasoning(opening, closing, reasoning_budget(sampling.effort, sampling.max_tokens))

    def _matcher(self, grammar: str | None) -> Constraint | None:
        return None if grammar is None else Constraint(self.tokenizer.constraint, grammar)

    def _prefix(self, request: GenerateRequest) -> list[int]:
        """Ids that the request adds to `context_ids`, up to where the reply begins."""
        if request.prompt is not None:
            return self._raw_prompt(request)
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

    def _raw_prompt(self, request: GenerateRequest) -> list[int]:
        if request.messages or request.context_ids or not request.prompt:
            raise EngineRefused("a prompt of ids stands alone, and has at least one")
        return list(request.prompt)


def _are(kind: type, *values: object) -> bool:
    """Whether all are of the very type; True is no int."""
    return all(type(value) is kind for value in values)


def _check_sampling(asked: Sampling) -> None:
    """EngineRefused for what cannot be sampled by; it would fail all that run beside it."""
    numbers = (asked.temperature, asked.top_p)
    if not (_are(int, asked.max_tokens, asked.seed, asked.top_logprobs) and _are(str, *asked.stop)):
        raise EngineRefused("sampling: max_tokens, seed and top_logprobs are integers, stop is text")
    if not all(isinstance(number, int | float) for number in numbers):
        raise EngineRefused("sampling: temperature and top_p are numbers")
    if asked.max_tokens < 1:
        raise EngineRefused(f"max_tokens is {asked.max_tokens}")
    if not (asked.temperature == 0 or 1e-3 <= asked.temperature < math.inf) or not 0 < asked.top_p <= 1:
        raise EngineRefused(f"temperature {asked.temperature} or top_p {asked.top_p} is out of range")
    if asked.top_logprobs < 0 or "" in asked.stop:
        raise EngineRefused("top_logprobs is negative, or a stop string empty")
    if asked.effort is not None and not (_are(int, asked.effort) and 1 <= asked.effort <= 100):
        raise EngineRefused(f"effort {asked.effort} is outside 1-100")


def _load_like(old: Llama, model: str) -> Llama:
    return Llama(*weights.open_checkpoint(files.find(model)), old.precision, old.kv, old.device)


def _nobody(outcome: Outcome) -> None:
    """Where a reply goes before anybody waits for it."""


def _resolve(future: "asyncio.Future[GenerateResult]", outcome: Outcome) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
