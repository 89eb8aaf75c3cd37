"""Reads the header of a GGUF file. Called by `tokenizer` (no torch) and `weights`.

The `gguf` package's own reader makes a numpy view per string: 4 s for the 98,000 strings of SmolLM2's vocabulary,
against 0.1 s here. Its dequantisation is used as it is (`weights`). Format: ggml's docs/gguf.md, versions 2 and 3,
little endian.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from schemas.errors import InputError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_HUGE = 1 << 32
"""No count or length of a real file is near this."""


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major (the file's order reversed); `kind` is the ggml type number."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    """Bytes from the start of the file."""


@dataclass(frozen=True)
class GgufFile:
    """Header of one file."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, TensorInfo]


def _take(file: BinaryIO, code: str) -> Any:
    size = struct.calcsize("<" + code)
    data = file.read(size)
    if len(data) != size:
        raise InputError("the GGUF header ends early")
    return struct.unpack("<" + code, data)[0]


def _count(file: BinaryIO) -> int:
    value = int(_take(file, "Q"))
    if value > _HUGE:
        raise InputError(f"the GGUF header has an impossible length {value}")
    return value


def _string(file: BinaryIO) -> str:
    size = _count(file)
    data = file.read(size)
    if len(data) != size:
        raise InputError("the GGUF header ends early")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("the GGUF header holds a string that is not UTF-8") from error


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        item, count = int(_take(file, "I")), _count(file)
        if item == _ARRAY:
            raise InputError("the GGUF header has an array of arrays")
        return [_value(file, item) for _ in range(count)]
    if kind not in _SCALARS:
        raise InputError(f"the GGUF header has an unknown value type {kind}")
    return _take(file, _SCALARS[kind])


def _tensor(file: BinaryIO) -> TensorInfo:
    name = _string(file)
    shape = tuple(_count(file) for _ in range(_take(file, "I")))
    return TensorInfo(name, shape[::-1], int(_take(file, "I")), int(_take(file, "Q")))


@lru_cache(maxsize=2)
def read_gguf(path: Path) -> GgufFile:
    """The header of `path`. InputError when it is no GGUF file or breaks off."""
    with path.open("rb") as file:
        try:
            return _header(path, file)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


def _header(path: Path, file: BinaryIO) -> GgufFile:
    if file.read(4) != b"GGUF" or _take(file, "I") not in (2, 3):
        raise InputError("not a GGUF file of version 2 or 3")
    tensor_count, field_count = _count(file), _count(file)
    fields = {_string(file): _value(file, int(_take(file, "I"))) for _ in range(field_count)}
    tensors = [_tensor(file) for _ in range(tensor_count)]
    align = fields.get("general.alignment", 32)
    if not isinstance(align, int) or align < 1:
        raise InputError(f"the GGUF header has an impossible alignment {align!r}")
    start = -(-file.tell() // align) * align
    placed = {t.name: TensorInfo(t.name, t.shape, t.kind, start + t.offset) for t in tensors}
    return GgufFile(path, fields, placed)
