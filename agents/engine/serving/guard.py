"""Who may ask: a token, or nobody from outside. In front of `app`; used by `pipelines.serve`."""

import hmac
import ipaddress
import os

from starlette.types import ASGIApp, Receive, Scope, Send

from agents.engine.serving.errors import ApiError
from schemas.errors import ConfigError

TOKEN_LENGTH = 16
"""At least so many characters."""


def is_loopback(host: str) -> bool:
    """Can it be reached from this host only?"""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_from(variable: str | None, host: str) -> str | None:
    """The token in an environment variable. ConfigError when it is missing, too short, or needed and not named."""
    if variable is None:
        if not is_loopback(host):
            raise ConfigError(f"a server on {host} can be reached by others: --token-env must name a variable")
        return None
    token = os.environ.get(variable, "")
    if len(token) < TOKEN_LENGTH or not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"${variable} must hold a token of at least {TOKEN_LENGTH} ASCII characters without spaces")
    return token


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
    if token is None and not is_loopback(_name(headers.get(b"host", b""))):
        return ApiError(403, "a server without a token is asked by a loopback address", code="wrong_host")
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if scope["method"] == "POST" and media != b"application/json":
        return ApiError(415, "the body must be application/json", code="unsupported_media_type")
    return None


def _name(host: bytes) -> str:
    """Of a Host header, without its port."""
    text = host.decode("latin-1")
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
