"""OpenAI's HTTP API over an engine. Made by `pipelines.serve`; a request is hostile until `schema` has parsed it."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agents.engine.base import GenerateRequest, GenerateResult
from agents.engine.serving import errors, prometheus
from agents.engine.serving.chat import ChatWriter
from agents.engine.serving.completions import TextWriter
from agents.engine.serving.errors import ApiError
from agents.engine.serving.flights import Event, Flight, Gate
from agents.engine.serving.guard import guarded
from agents.engine.serving.prompt import check_length
from agents.engine.serving.replies import Head, ServedEngine, Writer, usage
from agents.engine.serving.schema import ChatBody, CompletionBody, Generation, parse
from schemas.errors import ContextFull, EngineError, EngineRefused, GenerationPaused

MAX_BODY = 8 * 2**20
"""Bytes."""
BODY_S = 60.0
"""How long a body may take to arrive."""
BODIES = 16
"""Bodies that may be arriving at once."""
LARGE = 2**16
"""Bytes of a body from which on it is read in a thread."""
T = TypeVar("T")


class Server:
    """The endpoints. `failure`: why the engine answers no more, as far as the last request could tell."""

    def __init__(self, engine: ServedEngine, max_queue: int) -> None:
        self.engine = engine
        self.gate = Gate(engine.max_batch, max_queue)
        self.stats = prometheus.Stats()
        self.failure: str | None = None
        self._bodies = asyncio.Semaphore(BODIES)
        self._started = int(time.time())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._counted(request, lambda: self._answer(request, ChatBody, ChatWriter))

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._counted(request, lambda: self._answer(request, CompletionBody, TextWriter))

    async def models(self, _: Request) -> Response:
        """GET /v1/models: the one there is."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        self._check_model(request.path_params["name"])
        return JSONResponse(self._model())

    async def health(self, _: Request) -> Response:
        """GET /health: 503 once the engine has failed."""
        if self.failure is not None:
            raise ApiError(503, self.failure, code="engine_unavailable")
        return JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        """GET /metrics."""
        gate, engine = self.gate, self.engine
        limits = {"max_batch": gate.places, "max_queue": gate.queue, "context": engine.context}
        body = prometheus.text(self.stats, engine.metrics(), limits, gate.inside)
        return PlainTextResponse(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _counted(self, request: Request, act: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
        try:
            response = await act()
        except Exception as error:  # noqa: BLE001 - all are answered, in OpenAI's shape
            response = self.refusal(error)
        if not isinstance(response, Stream):  # which counts itself when it ends
            self.count(request.url.path, response.status_code)
        return response

    def refusal(self, error: Exception) -> Response:
        """The answer to a failure; what the engine cannot recover from is kept for /health."""
        if isinstance(error, EngineError) and not isinstance(error, EngineRefused | GenerationPaused):
            self.failure = str(error)
        return errors.of(error).response()

    def count(self, endpoint: str, status: int) -> None:
        """One request has been answered."""
        self.stats.outcomes[endpoint, prometheus.outcome(status)] += 1

    async def _answer(
        self, request: Request, kind: type[Generation], writer_of: Callable[[Any, ServedEngine], Writer]
    ) -> Response:
        self.gate.check(1)  # before a body is read that has no chance
        began = time.monotonic()
        raw = await self._read(request)
        # A large body takes seconds to read, and longer to see that it does not fit: not on the event loop.
        prepared = self._prepare(raw, kind, writer_of)
        writer = await asyncio.to_thread(prepared) if len(raw) > LARGE else prepared()
        body = writer.body
        flight = Flight(self.engine, self.gate, writer.requests)
        events = self._timed(flight.events(), began)
        head = Head(writer.names[0], self.engine.model)
        try:
            if body.stream:
                # What is wrong with the request shows before the first event: then no stream begins.
                first = await _watched(request, anext(events))
                return Stream(self, request.url.path, flight, self._lines(writer, head, first, events))
            results = await _watched(request, _collect(events, body.n))
        except BaseException:
            await flight.close()
            raise
        return JSONResponse(self._whole(writer, head, results))

    async def _timed(self, events: AsyncIterator[Event], began: float) -> AsyncIterator[Event]:
        waiting = True
        async for event in events:
            if waiting:
                self.stats.first_token.add(time.monotonic() - began)
                waiting = False
            yield event
        self.failure = None
        self.stats.request.add(time.monotonic() - began)

    def _whole(self, writer: Writer, head: Head, results: list[GenerateResult]) -> dict[str, Any]:
        choices = [writer.whole(index, result) for index, result in enumerate(results)]
        ids = {"prompt_token_ids": list(results[0].prompt_ids or ())} if writer.body.return_token_ids else {}
        version = results[-1].policy_version
        return head.answer(writer.names[1], version, choices, usage=usage(results), **ids)

    async def _lines(
        self, writer: Writer, head: Head, first: Event, rest: AsyncIterator[Event]
    ) -> AsyncGenerator[dict[str, Any]]:
        """The chunks of a stream."""
        kind, version, body = writer.names[2], self.engine.version, writer.body
        # The prompt's ids come with the first chunk, whatever that is.
        ids = {"prompt_token_ids": list(writer.prompt_ids())} if body.return_token_ids else {}
        results: dict[int, GenerateResult] = {}
        for choice in writer.first():
            yield head.answer(kind, version, [choice], **ids)
            ids = {}
        async for index, event in _chained(first, rest):
            if isinstance(event, GenerateResult):
                results[index], version = event, event.policy_version
                choices = writer.last(index, event)
            else:
                choices = writer.part(index, event)
            for choice in choices:
                yield head.answer(kind, version, [choice], **ids)
                ids = {}
        if body.stream_options is not None and body.stream_options.include_usage:
            yield head.answer(kind, version, [], usage=usage([results[index] for index in sorted(results)]))

    def _check_model(self, name: str) -> None:
        if name != self.engine.model:
            message = f"model {name[:100]!r} is not served, only {self.engine.model!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _prepare(
        self, raw: bytearray, kind: type[Generation], writer_of: Callable[[Any, ServedEngine], Writer]
    ) -> Callable[[], Writer]:
        def prepared() -> Writer:
            body = parse(kind, raw)
            self._check_model(body.model)
            writer = writer_of(body, self.engine)
            if len(raw) > LARGE:
                self._check_length(writer.requests[0])
            return writer

        return prepared

    def _check_length(self, request: GenerateRequest) -> None:
        """ContextFull for messages that are too long by themselves: the engine would find out on the event loop."""
        text = "".join(message.content for message in request.messages)
        check_length(text, self.engine.context, "messages")
        tokens = len(self.engine.tokenizer.encode(text))
        if tokens >= self.engine.context:
            raise ContextFull(f"the messages have {tokens} tokens, the context {self.engine.context}")

    async def _read(self, request: Request) -> bytearray:
        body = bytearray()
        try:
            async with self._bodies, asyncio.timeout(BODY_S):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MAX_BODY:
                        raise ApiError(413, f"the body is larger than {MAX_BODY} bytes")
        except TimeoutError as error:
            raise ApiError(408, f"the body took longer than {BODY_S:g} s") from error
        except ClientDisconnect as error:
            raise ApiError(errors.CLIENT_GONE, "the client went away") from error
        return body

    def _model(self) -> dict[str, Any]:
        engine = self.engine
        fixed = {"object": "model", "created": self._started, "owned_by": "trajmill"}
        return {"id": engine.model, **fixed, "max_model_len": engine.context, "version": engine.version}


class Stream(Response):
    """Server-sent events of a flight, which ends with the connection."""

    def __init__(self, server: Server, endpoint: str, flight: Flight, chunks: AsyncGenerator[dict[str, Any]]) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._server, self._endpoint, self._flight, self._chunks = server, endpoint, flight, chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the last event or until the client is gone."""
        status = errors.CLIENT_GONE
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            status = await _unless_gone(receive, self._send(send)) or status
        except OSError:
            pass  # the client went away while something was being sent
        finally:
            await self._flight.close()
            self._server.count(self._endpoint, status)

    async def _send(self, send: Send) -> int:
        status = 200
        async with contextlib.aclosing(self._chunks):
            try:
                async for chunk in self._chunks:
                    await _send_event(send, json.dumps(chunk, ensure_ascii=False, allow_nan=False))
                await _send_event(send, "[DONE]")
            except Exception as error:  # noqa: BLE001 - the stream has begun: the failure is its last event
                refused = self._server.refusal(error)
                status = refused.status_code
                await _send_event(send, bytes(refused.body).decode())
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return status


async def _send_event(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})


async def _chained(first: Event, rest: AsyncIterator[Event]) -> AsyncIterator[Event]:
    yield first
    async for event in rest:
        yield event


async def _collect(events: AsyncIterator[Event], n: int) -> list[GenerateResult]:
    """The results, by index."""
    results = {index: event async for index, event in events if isinstance(event, GenerateResult)}
    return [results[index] for index in range(n)]


async def _watched(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which ends when nobody waits for it any more."""
    result = await _unless_gone(request.receive, work)
    if result is None:
        raise ApiError(errors.CLIENT_GONE, "the client went away")
    return result


async def _unless_gone(receive: Receive, work: Awaitable[T]) -> T | None:
    """The result of `work`; None when the client went away first."""
    task, gone = asyncio.ensure_future(work), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.wait({task, gone})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def make_app(engine: ServedEngine, *, max_queue: int = 256, token: str | None = None) -> ASGIApp:
    """The ASGI application. The engine stays its caller's to close."""
    server = Server(engine, max_queue)
    routes = [
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/models", server.models),
        Route("/v1/models/{name:path}", server.model),
        Route("/health", server.health),
        Route("/metrics", server.metrics),
    ]
    handlers: dict[Any, Callable] = {
        ApiError: lambda _, error: error.response(),
        HTTPException: lambda _, error: ApiError(error.status_code, error.detail, headers=error.headers).response(),
        Exception: lambda _, error: errors.of(error).response(),
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return guarded(app, token)
