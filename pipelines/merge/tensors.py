"""safetensors files: headers parsed and written, tensor bytes read in pieces into one reused buffer.

Called by `pipelines.merge.plan` (headers only) and `.run`. Files are never mapped: mapped pages count as memory, and a
merge has to run in far less than a checkpoint. The format: 8 bytes of header length (little endian), a JSON object
{name: {dtype, shape, data_offsets}}, then the tensors without a gap.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import MergeError

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
_MAX_HEADER = 100 * 2**20


@dataclass(frozen=True)
class Tensor:
    """Where one tensor lies. `offset`: from the start of the file, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    size: int

    @property
    def values(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, Tensor]:
    """Tensors of a file by name. Raises MergeError when the file is not whole and consistent."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            whole = path.stat().st_size
            if length > min(_MAX_HEADER, whole - 8):
                raise MergeError(f"{path}: not a safetensors file: header of {length} bytes in a file of {whole}")
            header = json.loads(file.read(length))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        found = {name: _tensor(name, entry, path, 8 + length) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, MergeError):
            raise
        raise MergeError(f"{path}: not a readable safetensors file: {error!r}") from error
    end = 8 + length
    for tensor in sorted(found.values(), key=lambda t: (t.offset, t.offset + t.size)):
        if tensor.offset != end:
            raise MergeError(f"{path}: tensor {tensor.name} starts at byte {tensor.offset}, not at {end}")
        end += tensor.size
    if end != whole:
        raise MergeError(f"{path}: {whole} bytes, but its header describes {end}: cut short or overlong")
    return found


def _tensor(name: str, entry: dict[str, Any], path: Path, start: int) -> Tensor:
    dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if dtype not in BITS:
        raise MergeError(f"{path}: tensor {name} has the unknown dtype {dtype}")
    if not all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end)):
        raise MergeError(f"{path}: tensor {name} has a shape or offsets that are no natural numbers")
    if end - begin != math.prod(shape) * BITS[dtype] // 8:
        raise MergeError(f"{path}: tensor {name} {dtype} {list(shape)} does not fit its {end - begin} bytes")
    return Tensor(name, dtype, shape, path, start + begin, end - begin)


def header_bytes(entries: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """Length and header of a file with these (dtype, shape) by name, written in this order.

    Padded to 8 bytes; `format: pt` is what transformers insists on.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in entries.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_into(handle: int, buffer: npt.NDArray[np.uint8], offset: int) -> None:
    """Fill `buffer` from an open file. Raises MergeError when the file ends before it is full."""
    view = buffer.data
    while view:
        count = os.preadv(handle, [view], offset)
        if count == 0:
            raise MergeError(f"a checkpoint became shorter while it was read (at byte {offset})")
        view, offset = view[count:], offset + count
