"""One thread that runs steps: schedule -> run -> settle. `engine` has one per core; each has sequences of its own.

A thread per core with single-threaded products, not one thread with parallel ones: products of a small model are too
short to share out, and cores that also run sandboxes would make every one of them wait for the slowest.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from agents.engine.base import Chunk, GenerateResult
from agents.engine.models.llama import Llama
from agents.engine.paused import Paused
from agents.engine.runner import Runner
from agents.engine.sampler import Draw
from agents.engine.scheduler import Scheduler
from agents.engine.sequence import BLOCK, Finish, Sequence
from schemas.errors import EngineError, EngineRefused, EngineUnavailable, GenerationPaused

T = TypeVar("T")


class Worker:
    """A step thread. `steps` and `sampled` count work done, in steps and tokens; `load` requests not yet answered."""

    def __init__(self, runner: Runner, scheduler: Scheduler, eos_id: int, version: str) -> None:
        self.steps = self.sampled = self.load = 0
        self.scheduler = scheduler
        self._runner, self._eos_id, self._version = runner, eos_id, version
        self._live: dict[str, list[Sequence]] = {}
        self._arriving: list[tuple[Sequence, Paused]] = []
        self._wake = threading.Condition()
        self._inbox: list[tuple[Callable[[], None], Callable[[Exception], None]]] = []
        self._closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs steps."""
        return self._failure is None

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises EngineUnavailable when the thread has ended."""
        self._post(lambda: self._add(sequence), sequence.deliver)

    def restore(self, sequence: Sequence, state: Paused) -> None:
        """Queue a paused request, whose `sequence` has no blocks yet. Raises EngineUnavailable as `add`."""
        self._post(lambda: self._arriving.append((sequence, state)), sequence.deliver)

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Have `function` called between two steps. Raises EngineUnavailable when the thread has ended."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)
            else:
                future.set_result(result)

        def fail(error: Exception) -> None:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

        self._post(run, fail)
        return future

    def cancel(self, sequence: Sequence) -> None:
        """Free a request's place and blocks before the next step; nothing is delivered. Fine after the end, too."""
        self._quietly(lambda: self._leave(sequence, self.scheduler.cancel))

    def release(self, conversation: str) -> None:
        """Let the memory of a conversation be reused first. Fine after the end, too."""
        self._quietly(lambda: self.scheduler.release(conversation))

    def pause(self, conversation: str) -> Paused:
        """Stop a conversation's request here and give its state; its caller gets GenerationPaused. Through `call`."""
        arriving = [(one, state) for one, state in self._arriving if one.conversation == conversation]
        if conversation in self._live:
            sequence = self._live[conversation][0]
            state = self._state(sequence)
        elif arriving:
            sequence, state = arriving[0]
        else:
            raise EngineRefused(f"conversation {conversation!r} has no request in flight")
        self._leave(sequence, self.scheduler.cancel)
        sequence.deliver(GenerationPaused(f"{conversation} was paused after {len(sequence.output)} tokens"))
        return state

    def swap(self, model: Llama, version: str) -> None:
        """Go on with other weights: requests in flight keep what they computed, nothing else does. Through `call`."""
        self._runner.model, self._version = model, version
        self.scheduler.flush()

    def close(self) -> None:
        """End the thread and wait for it; requests in flight get EngineUnavailable."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _post(self, action: Callable[[], None], fail: Callable[[Exception], None]) -> None:
        with self._wake:
            if self._closing or self._failure is not None:
                raise EngineUnavailable(f"the engine has stopped: {self._failure or 'closed'}")
            self._inbox.append((action, fail))
            self._wake.notify()

    def _quietly(self, action: Callable[[], None]) -> None:
        with self._wake:
            if not self._closing and self._failure is None:
                self._inbox.append((action, lambda error: None))
                self._wake.notify()

    def _loop(self) -> None:
        torch.set_num_threads(1)
        try:
            while self._next():
                self._step()
            raise EngineUnavailable("the engine was closed")
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread must reach those who wait for it
            failure = _named(error)
            with self._wake:
                self._failure = failure
                inbox, self._inbox = self._inbox, []
            for _, fail in inbox:
                fail(failure)
            for sequence in [one for sequences in self._live.values() for one in sequences]:
                sequence.deliver(failure)
            for sequence, _ in self._arriving:
                sequence.deliver(failure)

    def _next(self) -> bool:
        """Take in what was posted; wait while there is nothing to do. False when the engine closes."""
        with self._wake:
            while not (self._inbox or self._closing or self._arriving or self.scheduler.busy):
                self._wake.wait()
            inbox, self._inbox = self._inbox, []
        for action, fail in inbox:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - one request is wrong, the others go on
                fail(_named(error))
        self._admit()
        return not self._closing

    def _add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)
        self._live.setdefault(sequence.conversation, []).append(sequence)

    def _leave(self, sequence: Sequence, how: Callable[[Sequence], None]) -> None:
        """Take a sequence out by `how`, once; a request that has ended meanwhile is left alone."""
        self._arriving = [one for one in self._arriving if one[0] is not sequence]
        live = self._live.get(sequence.conversation, [])
        if sequence not in live:
            return
        live.remove(sequence)
        if not live:
            del self._live[sequence.conversation]
        how(sequence)

    def _admit(self) -> None:
        """Give paused requests their blocks back, as far as there is room."""
        while self._arriving:
            sequence, state = self._arriving[0]
            try:
                if not self.scheduler.adopt(sequence):
                    if self.scheduler.busy:
                        return
                    raise EngineRefused(f"no room for the {sequence.computed} tokens of a paused request")
                self._restore(sequence, state)
                self.scheduler.resume(sequence)
            except Exception as error:  # noqa: BLE001 - a state from elsewhere may be wrong in any way
                self.scheduler.cancel(sequence)
                sequence.deliver(EngineRefused(f"the state of a paused request: {error}"))
            else:
                self._live.setdefault(sequence.conversation, []).append(sequence)
            self._arriving.pop(0)

    def _restore(self, sequence: Sequence, state: Paused) -> None:
        """Fill the blocks of an adopted sequence. ValueError when the state's bytes are not those of its tokens."""
        used, cache = -(-state.computed // BLOCK), self._runner.cache
        window = [(at, block) for at, block in enumerate(sequence.window[:used]) if block >= 0]
        if tuple(at for at, _ in window) != state.window_at:
            raise ValueError("it has other blocks of the window than the next token sees")
        cache.full.restore(sequence.table[:used], state.full)
        cache.window.restore([block for _, block in window], state.window)

    def _state(self, sequence: Sequence) -> Paused:
        # In mid-replay the window is not whole, so what was found is looked up again where the request goes on.
        computed = 0 if sequence.window and sequence.computed < sequence.kept else sequence.computed
        used, cache = -(-computed // BLOCK), self._runner.cache
        spare = used * BLOCK - computed
        window_at = tuple(at for at, block in enumerate(sequence.window[:used]) if block >= 0)
        return Paused(
            layout=self._runner.model.kv_layout,
            conversation=sequence.conversation,
            ids=tuple(sequence.ids),
            prompt=sequence.prompt,
            context=sequence.context,
            limit=sequence.limit,
            sampling=sequence.sampling,
            priority=sequence.priority,
            owner=sequence.owner,
            grammar=sequence.grammar,
            computed=computed,
            cached=sequence.cached,
            logprobs=tuple(sequence.logprobs),
            raw_logprobs=tuple(sequence.raw_logprobs),
            top=tuple(sequence.top),
            versions=tuple(sequence.versions),
            window_at=window_at,
            full=cache.full.export(sequence.table[:used], spare),
            window=cache.window.export([sequence.window[at] for at in window_at], spare),
        )

    def _step(self) -> None:
        step = self.scheduler.schedule()
        if not step.slices:
            return
        self.steps += 1
        drawn = self._runner.run(step)
        self.scheduler.advance(step)
        for sequence, draw in drawn:
            self._settle(sequence, draw)

    def _settle(self, sequence: Sequence, draw: Draw | EngineError) -> None:
        """Append what was sampled and what must follow it; deliver the reply when it is whole."""
        before = len(sequence.ids)
        try:
            if isinstance(draw, EngineError):
                raise draw
            finish = self._append(sequence, draw)
        except Exception as error:  # noqa: BLE001 - a grammar may fail in any way; the other requests go on
            self._leave(sequence, self.scheduler.cancel)
            sequence.deliver(_named(error))
            return
        if finish is not None and sequence.text is not None:
            sequence.text.end()
        if sequence.progress is not None:
            sequence.progress(_chunk(sequence, before - sequence.prompt, last=finish is not None))
        if finish is not None:
            self._leave(sequence, self.scheduler.finish)
            sequence.deliver(self._result(sequence, finish))

    def _append(self, sequence: Sequence, draw: Draw) -> Finish | None:
        remaining = sequence.prompt + sequence.limit - len(sequence.ids) - 1
        forced = sequence.matcher.forced(draw.token, remaining) if sequence.matcher else []
        follows = deque([draw.token, *forced])
        chosen = True
        while follows:
            token = follows.popleft()
            # What is forced was not chosen: certain where it counts, and no alternatives were looked at.
            sequence.ids.append(token)
            sequence.logprobs.append(draw.logprob if chosen else 0.0)
            sequence.raw_logprobs.append(draw.raw_logprob if chosen else None)
            sequence.top.append(draw.top if chosen else ())
            chosen = False
            self.sampled += 1
            _count_version(sequence, self._version)
            if sequence.text is not None:
                sequence.text.feed(token)
            if sequence.reasoning is not None:
                follows += sequence.reasoning.feed(token)
            finish = self._finish(sequence)
            if finish is not None:
                return finish
        return None

    def _finish(self, sequence: Sequence) -> Finish | None:
        if sequence.ids[-1] == self._eos_id or (sequence.text is not None and sequence.text.stopped):
            return "stop"
        return "length" if len(sequence.ids) - sequence.prompt >= sequence.limit else None

    def _result(self, sequence: Sequence, finish: Finish) -> GenerateResult:
        asked = sequence.sampling
        return GenerateResult(
            text=sequence.text.text if sequence.text is not None else "",
            finish_reason=finish,
            prompt_ids=tuple(sequence.ids[sequence.context : sequence.prompt]),
            output_ids=tuple(sequence.output),
            logprobs=tuple(sequence.logprobs),
            policy_version=self._version,
            cached_tokens=sequence.cached,
            versions=tuple(sequence.versions),
            raw_logprobs=tuple(sequence.raw_logprobs) if asked.raw_logprobs else None,
            top=tuple(sequence.top) if asked.top_logprobs else None,
            reasoning_tokens=sequence.reasoning.tokens if sequence.reasoning is not None else 0,
        )


def _named(error: BaseException) -> EngineError:
    """As an error of the engine's."""
    if isinstance(error, EngineError):
        return error
    named = EngineError(f"the engine failed: {error!r}")
    named.__cause__ = error
    return named


def _count_version(sequence: Sequence, version: str) -> None:
    if sequence.versions and sequence.versions[-1][0] == version:
        sequence.versions[-1] = (version, sequence.versions[-1][1] + 1)
    else:
        sequence.versions.append((version, 1))


def _chunk(sequence: Sequence, start: int, *, last: bool) -> Chunk:
    return Chunk(
        text=sequence.text.fresh(last=last) if sequence.text is not None else "",
        ids=tuple(sequence.output[start:]),
        logprobs=tuple(sequence.logprobs[start:]),
        top=tuple(sequence.top[start:]),
    )
