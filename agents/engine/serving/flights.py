"""Replies being made for one HTTP request, and how many there may be at once. Called by `app`."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence

from agents.engine.base import Chunk, GenerateRequest, GenerateResult
from agents.engine.serving.errors import ApiError
from agents.engine.serving.replies import ServedEngine

Event = tuple[int, Chunk | GenerateResult]
_WEIGHT = 0.2
"""Of the newest duration in the running mean."""


class Gate:
    """Lets `places` replies in at once, and `queue` more wait for them inside the engine."""

    def __init__(self, places: int, queue: int) -> None:
        self.inside = 0
        self.places, self.queue = places, queue
        self._mean_s: float | None = None

    def check(self, n: int) -> None:
        """ApiError 429 when `n` more do not fit now, 400 when they never will."""
        limit = self.places + self.queue
        if n > limit:
            raise ApiError(400, f"n is {n}: this server takes {limit} replies at once", param="n")
        if self.inside + n > limit:
            raise ApiError(429, f"{self.inside} replies are being made or wait", headers=self._retry_after(n))

    def enter(self, n: int) -> None:
        """As `check`, and they are in."""
        self.check(n)
        self.inside += n

    def leave(self, seconds: float | None) -> None:
        """One is out, after so many seconds; None when it was not finished."""
        self.inside -= 1
        if seconds is not None:
            self._mean_s = seconds if self._mean_s is None else (1 - _WEIGHT) * self._mean_s + _WEIGHT * seconds

    def _retry_after(self, n: int) -> dict[str, str]:
        """When `n` of the replies being made have probably ended, at the mean duration measured so far."""
        wait_s = (self._mean_s or 0.0) * n / self.places
        return {"Retry-After": str(max(1, math.ceil(wait_s)))}


class Flight:
    """The replies to one HTTP request. `close` frees all that are not finished, at once."""

    def __init__(self, engine: ServedEngine, gate: Gate, requests: Sequence[GenerateRequest]) -> None:
        """Starts them. ApiError when there is no room."""
        gate.enter(len(requests))
        self._engine, self._gate = engine, gate
        self._events: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        self._open = len(requests)
        self._tasks = [self._start(index, request) for index, request in enumerate(requests)]

    def _start(self, index: int, request: GenerateRequest) -> "asyncio.Task[float]":
        task = asyncio.create_task(self._one(index, request))
        task.add_done_callback(lambda task: self._ended(task, request))
        return task

    async def events(self) -> AsyncIterator[Event]:
        """Steps and results as they come; ends after the last result. Raises what the first failure is."""
        while self._open:
            event = await self._events.get()
            if isinstance(event, BaseException):
                raise event
            if isinstance(event[1], GenerateResult):
                self._open -= 1
            yield event

    async def close(self) -> None:
        """Cancel what still runs and wait until it is gone. Safe to call twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _one(self, index: int, request: GenerateRequest) -> float:
        began = time.monotonic()
        result = await self._engine.generate(request, lambda chunk: self._events.put_nowait((index, chunk)))
        self._events.put_nowait((index, result))
        return time.monotonic() - began

    def _ended(self, task: "asyncio.Task[float]", request: GenerateRequest) -> None:
        # Here and not in `_one`, which never begins when its task is cancelled first.
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._events.put_nowait(failure)
        self._gate.leave(None if task.cancelled() or failure is not None else task.result())
        self._engine.release(request.conversation)
