"""The node agent's HTTP: a pool of this host for clients elsewhere. Served by node/serve.py; called by node/link.py.

Every request is hostile until it has passed guard.py, fits `wire.MAX_BODY` and parses.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agents.sandbox.base import SandboxFactory
from agents.sandbox.node import wire
from agents.sandbox.node.agent import TTL_S, Agent
from agents.sandbox.node.guard import answer, guarded, say
from agents.sandbox.pool import Pool, PoolSettings
from agents.sandbox.signals import Reading
from schemas.errors import SandboxDied, SandboxError, SandboxLost

BODY_S = 60.0
"""How long a request may take to arrive."""
LARGE = 2**20
"""Bytes of a body of which only LARGE_AT_ONCE may be arriving: before it parses, nobody knows whose it is."""
LARGE_AT_ONCE = 8

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
) -> ASGIApp:
    """The ASGI application. Factory and signals are its pool's from then on, and closed with it at the shutdown.

    The pool refuses at once what there is no room for: clients go on to the next node, and wait on their side.
    """
    settings = dataclasses.replace(settings, wait_s=0.0)
    pool = Pool(factory, settings, signals)
    agent = Agent(pool, settings, signals, ttl_s)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        reclaim = asyncio.create_task(agent.reclaim_for_ever())
        try:
            yield
        finally:
            reclaim.cancel()
            await pool.close()

    routes = [
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
    app.state.body_s, app.state.large = body_s, asyncio.Semaphore(LARGE_AT_ONCE)
    return guarded(app, token)


def _route(
    path: str, body: type[Asked], act: Callable[[Asked], Coroutine[Any, Any, wire.Wire]], *, watch: bool = False
) -> Route:
    """POST of a body to an action; with `watch`, the action is cancelled when the client goes away."""

    async def endpoint(request: Request) -> Response:
        large = int(request.headers.get("content-length", LARGE)) >= LARGE
        async with request.app.state.large if large else contextlib.nullcontext():
            asked = wire.parse(body, await _body(request))
        try:
            return answer(await (_watched(request, act(asked)) if watch else act(asked)))
        except SandboxDied as error:
            if type(error) is SandboxDied:  # closed, and not by who asks
                raise SandboxLost(str(error)) from error
            raise

    return Route(path, endpoint, methods=["POST"])


async def _body(request: Request) -> bytearray:
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
    return body


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


async def _failed(_: Request, error: Exception) -> Response:
    return say(error)


async def _not_served(_: Request, error: HTTPException) -> Response:
    kind = SandboxError if error.status_code == 413 else ValueError
    return say(kind(error.detail), error.status_code)
