"""What keeps strangers out of a node agent, before its application sees anything. Used by server.py and serve.py."""

import asyncio
import hmac

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from agents.access import host_name, is_loopback
from agents.sandbox.node import wire
from schemas.errors import ConfigError

PATIENCE_S = 10.0
"""How long a connection may be open before its first request, and how long any request's headers may take."""


def guarded(app: ASGIApp, token: str | None) -> ASGIApp:
    """Nothing behind it sees a request without the token.

    A page in a browser can send requests to this host too. It cannot leave out its Origin when it sends JSON, nor keep
    a name that it has bound to 127.0.0.1 out of Host.
    """

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        refused = _refusal(scope, token) if scope["type"] == "http" else None
        await (refused or app)(scope, receive, send)

    return guard


def _refusal(scope: Scope, token: str | None) -> Response | None:
    headers = dict(scope["headers"])
    if token is not None and not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {token}".encode()):
        return say(ConfigError("the node wants another token"))
    if b"origin" in headers:
        return say(ValueError("browsers are not served"), 403)
    if token is None and not is_loopback(host_name(headers.get(b"host", b""))):
        return say(ValueError("a node without a token is asked by a loopback address"), 403)
    if scope["method"] == "POST" and headers.get(b"content-type") != b"application/json":
        return say(ValueError("the body must be application/json"), 415)
    return None


def answer(body: wire.Wire, status: int = 200) -> Response:
    """One body."""
    return Response(body.model_dump_json().encode(), status, media_type="application/json")


def say(error: Exception, status: int | None = None) -> Response:
    """An error, by its kind."""
    usual, body = wire.failure(error)
    return answer(body, status or usual)


class Impatient(H11Protocol):
    """Ends connections on which no request comes. uvicorn's own limit starts after an answer and ends with any byte."""

    patience_s = PATIENCE_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the parent has it
        """A client is there."""
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Some of a request, or of what follows one."""
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._calm()
        super().connection_lost(exc)

    def _look(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._calm()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.patience_s, self.transport.abort)

    def _calm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
