"""Reads the tensors of a merge piece by piece into buffers made once. Called by `pipelines.merge.run`.

A piece is CHUNK values in whole rows of the last dimension, at least one row: memory is bounded by that, not by the
checkpoints. Rows of embedding and head come by the plan's vocabulary, when it has one.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from pipelines.merge import native
from pipelines.merge.dtypes import FLOATS, Floats, is_finite_in, narrow, widen
from pipelines.merge.methods.base import Chunk
from pipelines.merge.plan import Output
from pipelines.merge.tensors import Tensor, read_into
from pipelines.merge.vocabulary import Vocabulary

CHUNK = 1 << 17
"""Values computed at once: 0.5 MB a buffer. Fewer stay nearer to the core, but calls then cost more than arithmetic."""

Raw = npt.NDArray[np.uint8]


def ranges(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First value and number of values of each piece."""
    values = math.prod(shape)
    step = _step(shape)
    for start in range(0, values, step):
        yield start, min(step, values - start)


def _step(shape: tuple[int, ...]) -> int:
    row = max(1, shape[-1]) if shape else 1
    return max(1, CHUNK // row) * row


class Loader:
    """Open files and buffers for some outputs of a plan; closes the files when its block ends."""

    def __init__(
        self, outputs: Sequence[Output], vocabulary: Vocabulary | None, missing_token: Literal["mean", "donor"]
    ) -> None:
        self._vocabulary, self._rule = vocabulary, missing_token
        self._files = ExitStack()
        self._handles: dict[Path, int] = {}
        self._means: dict[Tensor, Floats] = {}
        most = max((len(inputs(output)) for output in outputs), default=0)
        values = max((min(_step(o.shape), math.prod(o.shape)) for o in outputs), default=0)
        # Pages that nobody writes to cost nothing.
        self._raw = [np.empty(values * 4, dtype=np.uint8) for _ in range(most + 1)]
        self._values = [np.empty(values, dtype=np.float32) for _ in range(most)]
        self._merged = np.empty(values, dtype=np.float32)
        self._scratch = np.empty(values, dtype=np.uint32)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def chunks(self, output: Output) -> Iterator[Chunk]:
        """All pieces of a tensor in all its inputs, in order; valid until the next one."""
        for start, count in ranges(output.shape):
            arrays = self.floats(output, start, count)
            first = 0 if output.base is None else 1
            yield Chunk(start, tuple(arrays[first:]), arrays[0] if first else None)

    def floats(self, output: Output, start: int, count: int) -> list[Floats]:
        """Values [start, start + count) of every input, the base first, as float32."""
        tensors = inputs(output)
        if not output.per_token or self._vocabulary is None:
            for i, raw in enumerate(self.raw(output, start, count)):
                _widen(raw, tensors[i].dtype, self._values[i][:count])
            return [values[:count] for values in self._values[: len(tensors)]]
        width = output.shape[-1]
        span = slice(start // width, (start + count) // width)
        rows = [self._vocabulary.rows[tensor.file.parent][span] for tensor in tensors]
        found = [self._gather(i, t, r, width) for i, (t, r) in enumerate(zip(tensors, rows, strict=True))]
        self._fill(found, rows, tensors)
        return [values.reshape(-1) for values in found]

    def raw(self, output: Output, start: int, count: int) -> list[Raw]:
        """Values [start, start + count) of every input as they are stored."""
        found = []
        for buffer, tensor in zip(self._raw, inputs(output), strict=False):
            width = FLOATS[tensor.dtype].itemsize
            read_into(self._handle(tensor.file), buffer[: count * width], tensor.offset + start * width)
            found.append(buffer[: count * width])
        return found

    def merged(self, count: int) -> Floats:
        """Where a method writes its values."""
        return self._merged[:count]

    def target(self, dtype: str, count: int) -> Raw:
        """Where values to be stored are put; no other method uses it."""
        return self._raw[-1][: count * FLOATS[dtype].itemsize]

    def stored(self, values: Floats, dtype: str) -> Raw | None:
        """The values rounded once; None when one is then not finite."""
        out = self.target(dtype, values.size)
        if native.library() is not None:
            return out if native.narrow(values, dtype, out) else None
        if not is_finite_in(values, dtype):
            return None
        narrow(values, dtype, out, self._scratch[: values.size])
        return out

    def _handle(self, file: Path) -> int:
        if file not in self._handles:
            handle = os.open(file, os.O_RDONLY)
            self._files.callback(os.close, handle)
            self._handles[file] = handle
        return self._handles[file]

    def _gather(self, i: int, tensor: Tensor, rows: npt.NDArray[np.int64], width: int) -> Floats:
        """Rows [len(rows), width] of an input as float32, zero where it has none (-1)."""
        size = width * FLOATS[tensor.dtype].itemsize
        raw = self._raw[i][: len(rows) * size]
        # A run: rows that follow on each other in the file are read at once.
        breaks = (np.flatnonzero((np.diff(rows) != 1) | (rows[:-1] < 0)) + 1).tolist()
        for low, high in zip([0, *breaks], [*breaks, len(rows)], strict=True):
            if rows[low] < 0:
                raw[low * size : high * size] = 0
            else:
                offset = tensor.offset + int(rows[low]) * size
                read_into(self._handle(tensor.file), raw[low * size : high * size], offset)
        values = self._values[i][: len(rows) * width]
        _widen(raw, tensor.dtype, values)
        return values.reshape(len(rows), width)

    def _fill(self, found: Sequence[Floats], rows: Sequence[npt.NDArray[np.int64]], tensors: Sequence[Tensor]) -> None:
        """Give the tokens that a model lacks their rows, by the recipe's rule."""
        lacks = [r < 0 for r in rows]
        if self._rule == "mean":
            for values, missing, tensor in zip(found, lacks, tensors, strict=True):
                if missing.any():
                    values[missing] = self._mean(tensor)
            return
        anywhere = np.logical_or.reduce(lacks)
        if not anywhere.any():
            return
        donors = np.maximum(1, len(rows) - np.sum(lacks, axis=0))[anywhere]
        # A missing row is zero so far and adds nothing.
        total = found[0][anywhere]
        for values in found[1:]:
            total += values[anywhere]
        total /= donors[:, None].astype(np.float32)
        for values, missing in zip(found, lacks, strict=True):
            values[missing] = total[missing[anywhere]]

    def _mean(self, tensor: Tensor) -> Floats:
        """The mean of the rows that a token has, from one pass over a tensor; kept, since every piece may ask."""
        if tensor not in self._means and self._vocabulary is not None:
            width, itemsize = tensor.shape[-1], FLOATS[tensor.dtype].itemsize
            total = np.zeros(width)
            used = np.zeros(tensor.shape[0], dtype=bool)
            own = self._vocabulary.own[tensor.file.parent]
            used[own[own < used.size]] = True
            for start, count in ranges(tensor.shape):
                raw, values = np.empty(count * itemsize, dtype=np.uint8), np.empty(count, dtype=np.float32)
                read_into(self._handle(tensor.file), raw, tensor.offset + start * itemsize)
                _widen(raw, tensor.dtype, values)
                span = slice(start // width, (start + count) // width)
                total += values.reshape(-1, width)[used[span]].sum(axis=0, dtype=np.float64)
            self._means[tensor] = (total / max(1, used.sum())).astype(np.float32)
        return self._means[tensor]


def inputs(output: Output) -> tuple[Tensor, ...]:
    """The base, if there is one, then the models."""
    return output.models if output.base is None else (output.base, *output.models)


def _widen(raw: Raw, dtype: str, out: Floats) -> None:
    if native.library() is not None:
        native.widen(raw, dtype, out)
    else:
        widen(raw, dtype, out)
