"""The node agent's HTTP: a pool of this host for clients elsewhere. Served by node/serve.py; called by node/link.py.

Every request is hostile until it has shown the token (where there is one), fits `wire.MAX_BODY` and parses.
"""

import asyncio
import contextlib
import dataclasses
import hmac
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agents.sandbox.base import SandboxFactory
from agents.sandbox.node import wire
from agents.sandbox.node.agent import TTL_S, Agent
from agents.sandbox.pool import Pool, PoolSettings
from agents.sandbox.signals import Reading
from schemas.errors import ConfigError, SandboxDied, SandboxError, SandboxLost

BODY_S = 60.0
"""How long a request may take to arrive."""

Asked = TypeVar("Asked", bound=wire.Wire)
T = TypeVar("T")


def make_app(
    factory: SandboxFactory,
    settings: PoolSettings,
    signals: Callable[[], Reading],
    *,
    token: str | None = None,
    ttl_s: float = TTL_S,
    body_s: float = BODY_S,
    numa_nodes: int = 1,
) -> ASGIApp:
    """The ASGI application. Factory and signals are its pool's from then on, and closed with it at the shutdown.

    The pool refuses at once what there is no room for: clients go on to the next node, and wait on their side.
    """
    settings = dataclasses.replace(settings, wait_s=0.0)
    pool = Pool(factory, settings, signals)
    agent = Agent(pool, settings, signals, ttl_s, numa_nodes)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        reclaim = asyncio.create_task(agent.reclaim_for_ever())
        try:
            yield
        finally:
            reclaim.cancel()
            await pool.close()

    async def reading(_: Request) -> Response:
        return _answer(wire.Renewed(gone=[], reading=agent.reading()))

    routes = [
        Route("/reading", reading),
        _route("/lease", wire.Lease, agent.lease, watch=True),
        _route("/fork", wire.Fork, agent.fork, watch=True),
        _route("/run", wire.Run, agent.run, watch=True),
        _route("/put", wire.Put, agent.put),
        _route("/collect", wire.Collect, agent.collect),
        _route("/kill_all", wire.OfLease, agent.kill_all),
        _route("/seal", wire.OfLease, agent.seal),
        _route("/close", wire.OfLease, agent.close),
        _route("/free", wire.OfSnapshot, agent.free),
        _route("/renew", wire.Renew, agent.renew),
    ]
    handlers: dict[Any, Callable] = {
        SandboxError: _failed,
        ValueError: _failed,
        Exception: _failed,
        HTTPException: _not_served,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.state.body_s = body_s
    return _guarded(app, token)


def _route(
    path: str, body: type[Asked], act: Callable[[Asked], Coroutine[Any, Any, wire.Wire]], *, watch: bool = False
) -> Route:
    """POST of a body to an action; with `watch`, the action is cancelled when the client goes away."""

    async def endpoint(request: Request) -> Response:
        try:
            asked = body.model_validate_json(await _body(request))
        except ValidationError as error:
            raise ValueError(wire.problem(error)) from error
        try:
            return _answer(await (_watched(request, act(asked)) if watch else act(asked)))
        except SandboxDied as error:
            if type(error) is SandboxDied:  # closed, and not by who asks
                raise SandboxLost(str(error)) from error
            raise

    return Route(path, endpoint, methods=["POST"])


def _guarded(app: ASGIApp, token: str | None) -> ASGIApp:
    """Nothing behind it sees a request without the token.

    A page in a browser can send requests to 127.0.0.1 too, but JSON only with a permission that we never give.
    """
    wanted = f"Bearer {token}".encode()

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if token is not None and not hmac.compare_digest(headers.get(b"authorization", b""), wanted):
                return await _say(ConfigError("the node wants another token"))(scope, receive, send)
            if scope["method"] == "POST" and headers.get(b"content-type") != b"application/json":
                return await _say(ValueError("the body must be application/json"), 415)(scope, receive, send)
        return await app(scope, receive, send)

    return guard


async def _body(request: Request) -> bytes:
    body, body_s = bytearray(), request.app.state.body_s
    try:
        async with asyncio.timeout(body_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > wire.MAX_BODY:
                    raise HTTPException(413, f"the body is larger than {wire.MAX_BODY} bytes")
    except TimeoutError as error:
        raise HTTPException(408, f"the body took longer than {body_s:g} s") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the client went away") from error
    return bytes(body)


async def _watched(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which ends (a command with its whole tree) when nobody waits for it any more."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise HTTPException(400, "the client went away")
    finally:
        gone.cancel()
        if task.cancel():
            await asyncio.wait([task])


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _answer(body: wire.Wire, status: int = 200) -> Response:
    return Response(body.model_dump_json().encode(), status, media_type="application/json")


def _say(error: Exception, status: int | None = None) -> Response:
    usual, body = wire.failure(error)
    return _answer(body, status or usual)


async def _failed(_: Request, error: Exception) -> Response:
    return _say(error)


async def _not_served(_: Request, error: HTTPException) -> Response:
    kind = SandboxError if error.status_code == 413 else ValueError
    return _say(kind(error.detail), error.status_code)
