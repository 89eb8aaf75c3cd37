"""The C kernels as functions of tensors. Called by `models.llama` on a CPU; imports torch.

They mean what `attention` computes in torch, row for row. A row's result does not depend on the rows beside it.
"""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

import numpy as np
import torch
from numpy.typing import NDArray

from agents.engine.attention import Heads, Span
from agents.engine.kv import FORMATS, KVStore, Layout


class _Attention(ctypes.Structure):
    """`Attention` of attend.c."""

    _fields_ = (
        *((name, c_int32) for name in ("heads", "kv_heads", "size", "format", "group", "window")),
        *((name, c_int64) for name in ("head_bytes", "key_scales", "values", "value_scales")),
        *((name, c_void_p) for name in ("cos", "sin", "bias", "q_norm", "k_norm")),
        ("norm_eps", c_float),
    )


class NativeKernels:
    """As `attention.TorchKernels`: fp32 on the CPU, contiguous, widths a multiple of 8."""

    def __init__(
        self, library: ctypes.CDLL, heads: list[Heads], layout: Layout, cos: torch.Tensor, sin: torch.Tensor
    ) -> None:
        self._kept = [heads, cos, sin]  # the structures below point into their tensors
        self.windowed = [one.window is not None for one in heads]
        self.width = heads[0].heads * heads[0].size
        self.layers = [_constants(one, layout, cos, sin) for one in heads]
        self.attend = library.attend
        self.attend.argtypes, self.attend.restype = [c_void_p] * 5 + [c_int32, c_void_p, c_void_p], None
        self._add_norm, self._silu_mul = library.add_norm, library.silu_mul
        self._add_norm.argtypes = [c_void_p, c_void_p, c_void_p, c_float, c_int32, c_int32, c_void_p]
        self._silu_mul.argtypes = [c_void_p, c_int32, c_int32, c_void_p]
        self._add_norm.restype = self._silu_mul.restype = None
        library.attend_scratch.argtypes, library.attend_scratch.restype = [c_void_p], c_int64
        self.scratch_size = max(library.attend_scratch(ctypes.byref(one)) for one in self.layers)

    def attention(self, spans: list[Span]) -> "NativeAttention":
        """Attention of one step."""
        return NativeAttention(self, spans)

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """As `TorchKernels.add_norm`."""
        out = torch.empty_like(x)
        self._add_norm(_at(x), _at(delta), _at(weight), eps, *x.shape, _at(out))
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As `TorchKernels.silu_mul`."""
        rows, width = gate_up.shape
        out = gate_up.new_empty(rows, width // 2)
        self._silu_mul(_at(gate_up), rows, width // 2, _at(out))
        return out


class NativeAttention:
    """As `attention.TorchAttention`; overwrites `qkv`."""

    def __init__(self, kernels: NativeKernels, spans: list[Span]) -> None:
        self._kernels, self._spans = kernels, spans
        self._starts = np.cumsum([0, *(span.count for span in spans)])
        # Neighbours should share blocks: those are unpacked once for all of them.
        self._order = sorted(range(len(spans)), key=lambda i: spans[i].table)
        self._scratch = torch.empty(kernels.scratch_size)
        self._flat: dict[bool, tuple[NDArray[np.int32], NDArray[np.int32]]] = {}

    def __call__(self, index: int, store: KVStore, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """As `TorchAttention.__call__`."""
        kernels = self._kernels
        spans, tables = self._tables(kernels.windowed[index])
        out = qkv.new_empty(len(qkv), kernels.width)
        out[self._starts[-1] :] = 0
        kernels.attend(
            ctypes.byref(kernels.layers[index]),
            store.data.data_ptr() + layer * store.data.stride(0),
            _at(qkv),
            _at(out),
            spans.ctypes.data,
            len(spans),
            tables.ctypes.data,
            _at(self._scratch),
        )
        return out

    def _tables(self, windowed: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The spans as attend.c has them, and the block numbers they point into."""
        if windowed not in self._flat:
            flat: list[int] = []
            rows = []
            for i in self._order:
                span = self._spans[i]
                rows.append((len(flat), self._starts[i], span.start, span.count, 0 if windowed else span.kept))
                flat += (span.window or []) if windowed else span.table
            self._flat[windowed] = np.array(rows, dtype=np.int32), np.array(flat, dtype=np.int32)
        return self._flat[windowed]


def _constants(heads: Heads, layout: Layout, cos: torch.Tensor, sin: torch.Tensor) -> _Attention:
    return _Attention(
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        size=heads.size,
        format=FORMATS.index(layout.format),
        group=layout.group,
        window=heads.window or 0,
        head_bytes=layout.head_bytes,
        key_scales=layout.key_scales,
        values=layout.values,
        value_scales=layout.value_scales,
        cos=_at(cos),
        sin=_at(sin),
        bias=_at(heads.bias),
        q_norm=_at(heads.q_norm),
        k_norm=_at(heads.k_norm),
        norm_eps=heads.norm_eps,
    )


def _at(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
