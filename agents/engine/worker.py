"""One thread that runs steps: schedule -> run -> settle. `engine` has one per core; each has sequences of its own.

A thread per core with single-threaded products, not one thread with parallel ones: products of a small model are too
short to share out, and cores that also run sandboxes would make every one of them wait for the slowest.
"""

import threading
from collections.abc import Callable

import torch

from agents.engine.base import GenerateResult
from agents.engine.runner import Runner
from agents.engine.sampler import Draw
from agents.engine.scheduler import Scheduler
from agents.engine.sequence import Finish, Sequence
from agents.engine.tokenizer import ChatTokenizer
from schemas.errors import EngineError, EngineRefused, EngineUnavailable


class Worker:
    """A step thread. `steps`, `sampled`, `prefilled` and `cached` count work done, in steps and tokens."""

    def __init__(self, runner: Runner, scheduler: Scheduler, tokenizer: ChatTokenizer, version: str) -> None:
        self.steps = self.sampled = self.prefilled = self.cached = 0
        self.load = 0
        """Requests posted and not yet answered; kept by the engine."""
        self._runner, self._scheduler, self._tokenizer, self._version = runner, scheduler, tokenizer, version
        self._wake = threading.Condition()
        self._inbox: list[Callable[[], None]] = []
        self._closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises EngineUnavailable when the thread has ended."""
        with self._wake:
            if self._closing or self._failure is not None:
                raise EngineUnavailable(f"the engine has stopped: {self._failure or 'closed'}")
            self._inbox.append(lambda: self._scheduler.add(sequence))
            self._wake.notify()

    def release(self, conversation: str) -> None:
        """Let the memory of a conversation be reused first."""
        with self._wake:
            if not self._closing and self._failure is None:
                self._inbox.append(lambda: self._scheduler.blocks.release(conversation))
                self._wake.notify()

    def close(self) -> None:
        """End the thread and wait for it; requests in flight get EngineUnavailable."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _loop(self) -> None:
        torch.set_num_threads(1)
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
        if sequence.ids[-1] == self._tokenizer.eos_id:
            return "stop"
        if sequence.sampling.stop and self._stop_at(sequence) is not None:
            return "stop"
        return "length" if len(sequence.ids) - sequence.prompt >= sequence.limit else None

    def _stop_at(self, sequence: Sequence) -> int | None:
        text = self._tokenizer.decode(sequence.output)
        places = [place for stop in sequence.sampling.stop if (place := text.find(stop)) >= 0]
        return min(places, default=None)

    def _result(self, sequence: Sequence, finish: Finish) -> GenerateResult:
        return GenerateResult(
            text=self._tokenizer.decode(sequence.output)[: self._stop_at(sequence)],
            finish_reason=finish,
            prompt_ids=tuple(sequence.ids[sequence.context : sequence.prompt]),
            output_ids=tuple(sequence.output),
            logprobs=tuple(sequence.logprobs),
            policy_version=self._version,
            cached_tokens=sequence.cached,
        )
