"""What goes wrong with a request, in OpenAI's shape. Raised all over `serving`; written by `app`."""

import logging
from typing import Any

from starlette.responses import JSONResponse

from schemas.errors import ContextFull, EngineRefused, EngineUnavailable, GenerationPaused, TrajmillError

log = logging.getLogger(__name__)

CLIENT_GONE = 499
"""Status of a request whose client went away, as nginx counts it. Never sent."""
_CODES = {401: "invalid_api_key", 429: "overloaded"}


class ApiError(TrajmillError):
    """A request that gets no reply. `param` is the field to blame, `code` a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code or _CODES.get(status)
        self.headers = headers

    @property
    def kind(self) -> str:
        """OpenAI's `type`."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """{"error": {...}} as OpenAI writes it."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The answer that says so."""
        return JSONResponse(self.body(), self.status, self.headers)


def of(error: BaseException) -> ApiError:
    """Any failure as one to answer with. What nobody expected is logged, and its text stays here."""
    match error:
        case ApiError():
            return error
        case ContextFull():
            return ApiError(400, str(error), param="messages", code="context_length_exceeded")
        case EngineRefused():
            return ApiError(400, str(error))
        case EngineUnavailable() | GenerationPaused():
            return ApiError(503, str(error), code="engine_unavailable")
    log.error("a request failed", exc_info=error)
    return ApiError(500, "the engine failed", code="internal_error")
