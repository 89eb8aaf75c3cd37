"""What node agents and their clients say to each other: JSON bodies, bytes in URL-safe base64. Both sides use this.

Text that may hold lone surrogates (commands, paths: a model or a file system wrote them) travels as bytes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agents.sandbox.base import WORK, ExecResult, Limits, Priority
from agents.sandbox.node.placement import NodeReading
from schemas.errors import (
    ConfigError,
    SandboxCrashed,
    SandboxDied,
    SandboxError,
    SandboxExpired,
    SandboxLost,
    SandboxRefused,
    SandboxUnsupported,
)

MAX_BODY = 128 * 2**20
"""Of a request or an answer, in bytes. Files take 4/3 of their size."""
MAX_COMMAS = 100_000
"""In a body: they bound how many values it has, as neither base64 nor an id has commas. 100,000 parse in 40 ms."""
_LARGEST_LIMIT = 2**31


def _possible(limits: Limits) -> Limits:
    for name, value in dataclasses.asdict(limits).items():
        if not 0 < value < _LARGEST_LIMIT:
            raise ValueError(f"{name} is {value}, not above 0 and below {_LARGEST_LIMIT}")
    if limits.output_bytes > MAX_BODY // 4:
        raise ValueError(f"output_bytes is {limits.output_bytes}, above the {MAX_BODY // 4} that fit an answer")
    return limits


Id = Annotated[str, Field(min_length=1, max_length=64)]
Seconds = Annotated[float, Field(ge=0, lt=_LARGEST_LIMIT)]
PossibleLimits = Annotated[Limits, AfterValidator(_possible)]


class Wire(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )


class Lease(Wire):
    """POST /lease → Leased."""

    limits: PossibleLimits
    priority: Priority


class Fork(Wire):
    """POST /fork → Leased."""

    snapshot: Id
    priority: Priority


class Leased(Wire):
    """The id is the right to use the sandbox: nobody else learns it."""

    lease: Id


class OfLease(Wire):
    """POST /kill_all, /close → Done; /seal → Sealed."""

    lease: Id


class OfSnapshot(Wire):
    """POST /free → Done."""

    snapshot: Id


class Sealed(Wire):
    """A snapshot that lives on its own."""

    snapshot: Id


class Run(Wire):
    """POST /run → Ran."""

    lease: Id
    command: bytes | list[bytes]
    timeout_s: Seconds | None
    stdin: bytes
    cwd: bytes
    merge_stderr: bool


class Ran(Wire):
    """How it ended."""

    result: ExecResult


class File(Wire):
    """One file."""

    path: bytes
    data: bytes
    executable: bool = False


class Put(Wire):
    """POST /put → Done."""

    lease: Id
    files: list[File]
    root: str = WORK


class Collect(Wire):
    """POST /collect → Collected."""

    lease: Id
    paths: list[bytes]


class Collected(Wire):
    """What was there."""

    files: list[File]


class Renew(Wire):
    """POST /renew → Renewed. Of everything that the client holds on the node."""

    leases: list[Id]
    snapshots: list[Id]


class Renewed(Wire):
    """`gone`: ids that the node does not have."""

    gone: list[Id]
    reading: NodeReading


class Done(Wire):
    """Nothing to say."""


class Failure(Wire):
    """Every answer whose status is not 200. `kind`: class of the error; `cause`: of a SandboxRefused."""

    kind: str
    message: str
    cause: str = ""


_STATUS: dict[type[Exception], int] = {
    ConfigError: 401,
    SandboxCrashed: 410,
    SandboxExpired: 410,
    SandboxLost: 404,
    SandboxDied: 410,
    SandboxRefused: 503,
    SandboxUnsupported: 501,
    SandboxError: 500,
    ValueError: 400,
}
_KINDS = {kind.__name__: kind for kind in _STATUS}


def failure(error: Exception) -> tuple[int, Failure]:
    """Status and body for an error; what has no kind of its own here goes by the nearest one above it."""
    kind = next((kind for kind in type(error).__mro__ if kind in _STATUS), None)
    if kind is None:
        return 500, Failure(kind="SandboxError", message="internal error of the node, see its log")
    cause = error.cause if isinstance(error, SandboxRefused) else ""
    return _STATUS[kind], Failure(
        kind=kind.__name__, message=to_bytes(str(error)).decode(errors="replace"), cause=cause
    )


def error(body: bytes) -> Exception:
    """The error that a failed answer stands for. One that no node agent would send is a SandboxLost."""
    try:
        said = Failure.model_validate_json(body)
    except ValidationError:
        return SandboxLost("the answer is not a node agent's")
    if said.kind == "SandboxRefused":
        return SandboxRefused(said.cause, said.message)
    kind = _KINDS.get(said.kind)
    return kind(said.message) if kind else SandboxError(f"{said.kind}: {said.message}")


Body = TypeVar("Body", bound=Wire)


def parse(kind: type[Body], body: bytearray) -> Body:
    """The body of a request. ValueError with one line on what is wrong with it, without repeating it."""
    if body.count(b",") > MAX_COMMAS:
        raise ValueError(f"body: more than {MAX_COMMAS} values")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"[:300]) from error


def to_bytes(text: str) -> bytes:
    """Text as it travels."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """Back. Raises ValueError for bytes that `to_bytes` does not make."""
    return data.decode("utf-8", "surrogatepass")


def to_command(command: str | Sequence[str]) -> bytes | list[bytes]:
    """A shell line is bytes, an argument vector a list of them."""
    return to_bytes(command) if isinstance(command, str) else [to_bytes(part) for part in command]
