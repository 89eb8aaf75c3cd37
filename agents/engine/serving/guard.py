"""Who may ask: a token, or nobody from outside. In front of `app`; used by `pipelines.serve`."""

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from agents.access import host_name, is_loopback
from agents.engine.serving.errors import ApiError


def guarded(app: ASGIApp, token: str | None) -> ASGIApp:
    """Nothing behind it sees a request without the token.

    Without one, pages in a browser of this host are kept out: they cannot send JSON to another origin unasked, nor
    keep a name that they have bound to 127.0.0.1 out of Host.
    """

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        refused = _refusal(scope, token) if scope["type"] == "http" else None
        await (refused.response() if refused else app)(scope, receive, send)

    return guard


def _refusal(scope: Scope, token: str | None) -> ApiError | None:
    headers = dict(scope["headers"])
    if token is not None and not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {token}".encode()):
        return ApiError(401, "the token is missing or wrong", headers={"WWW-Authenticate": "Bearer"})
    if token is None and not is_loopback(host_name(headers.get(b"host", b""))):
        return ApiError(403, "a server without a token is asked by a loopback address", code="wrong_host")
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if scope["method"] == "POST" and media != b"application/json":
        return ApiError(415, "the body must be application/json", code="unsupported_media_type")
    return None
