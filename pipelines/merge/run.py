"""Runs a merge: plan, stream, write, publish. Called by the command `trajmill merge`.

Everything is written into `<out>.tmp`, fsynced, and renamed at the end, so `out` is whole or absent. A later merge into
the same `out` clears what a killed one left.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pipelines.files import fsync_folder, sha256_of
from pipelines.merge import methods
from pipelines.merge.dtypes import FLOATS, is_finite_in, narrow, widen
from pipelines.merge.plan import INDEX, Checkpoint, Output, Plan, plan
from pipelines.merge.tensors import Tensor, header_bytes, read_into
from schemas.errors import MergeError
from schemas.recipe import MergeRecipe

CHUNK = 1 << 17
"""Values computed at once: 0.5 MB a buffer. Fewer stay nearer to the core, but calls then cost more than arithmetic."""

_COPIED = (
    "config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*",
    "merges.txt", "chat_template*",
)  # fmt: skip


def merge(recipe: MergeRecipe, out: Path) -> Path:
    """Merge checkpoints into the new folder `out` and give it back.

    The first model gives layout, configuration and tokenizer. `lineage.json` names recipe, sources with SHA-256, their
    own lineage, and the files written. Memory is bounded by CHUNK, not by the models. Raises MergeError when `out`
    exists, the checkpoints do not fit (all misfits listed, nothing written), or a value is not finite (tensor named).
    """
    _refuse_existing(out)
    planned = plan(recipe)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _publishing(out) as folder:
        written = _write_weights(planned, folder)
        _write_index(planned, folder)
        _copy_files(planned, folder)
        _write_json(folder / "lineage.json", _lineage(planned, written))
    return out


@contextmanager
def _publishing(out: Path) -> Iterator[Path]:
    """`<out>.tmp`, empty and ours alone; fsynced and renamed to `out` after a good end, removed otherwise."""
    folder = out.with_name(out.name + ".tmp")
    folder.mkdir(exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MergeError(f"{folder}: another merge into {out} is running") from error
        _refuse_existing(out)
        try:
            for leftover in folder.iterdir():
                leftover.unlink()
            yield folder
            fsync_folder(folder)
            _refuse_existing(out)
            folder.rename(out)
        except BaseException:
            shutil.rmtree(folder)
            raise
        fsync_folder(out.parent)
    finally:
        os.close(handle)


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise MergeError(f"{out} exists; a merge never writes over anything")


class _Buffers:
    """Memory of a merge, made once: one chunk's bytes, and its float32 values for each model."""

    def __init__(self, models: int) -> None:
        self.raw = np.empty(CHUNK * 4, dtype=np.uint8)
        self.values = [np.empty(CHUNK, dtype=np.float32) for _ in range(models)]
        self.sum = np.empty(CHUNK, dtype=np.float32)
        self.scratch = np.empty(CHUNK, dtype=np.float32)

    def load(self, model: int, handle: int, tensor: Tensor, start: int, count: int) -> methods.Floats:
        """Values [start, start + count) of a tensor as float32, valid until the next load for this model."""
        width = FLOATS[tensor.dtype].itemsize
        raw = self.raw[: count * width]
        read_into(handle, raw, tensor.offset + start * width)
        values = self.values[model][:count]
        widen(raw, tensor.dtype, values)
        return values


def _write_weights(planned: Plan, folder: Path) -> list[dict[str, Any]]:
    """Write every weight file; gives name, bytes and SHA-256 of each."""
    buffers = _Buffers(len(planned.models))
    written = []
    with ExitStack() as stack:
        handles = {
            file: stack.enter_context(file.open("rb", buffering=0)).fileno()
            for model in planned.models
            for file in model.files
        }
        for name, outputs in planned.files.items():
            with (folder / name).open("xb", buffering=0) as file:
                digest = hashlib.sha256()
                header = header_bytes({o.name: (o.dtype, o.shape) for o in outputs})
                _append(file, digest, memoryview(header))
                for output in outputs:
                    _write_tensor(planned, output, handles, buffers, file, digest)
                os.fsync(file.fileno())
                written.append({"file": name, "bytes": file.tell(), "sha256": digest.hexdigest()})
    return written


def _append(file: BinaryIO, digest: "hashlib._Hash", data: memoryview) -> None:
    digest.update(data)
    while data:
        data = data[file.write(data) :]


def _chunks(output: Output) -> Iterator[tuple[int, int]]:
    values = output.sources[0].values
    for start in range(0, values, CHUNK):
        yield start, min(CHUNK, values - start)


def _write_tensor(
    planned: Plan, output: Output, handles: dict[Path, int], buffers: _Buffers, file: BinaryIO, digest: "hashlib._Hash"
) -> None:
    """Compute one tensor chunk by chunk in float32 and append it, rounded once."""
    weights = planned.weights or _slerp_weights(planned, output, handles, buffers)
    for start, count in _chunks(output):
        arrays = [buffers.load(i, handles[t.file], t, start, count) for i, t in enumerate(output.sources)]
        result, scratch = buffers.sum[:count], buffers.scratch[:count]
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is found on the next line
            methods.weighted_sum(arrays, weights, result, scratch)
        if not is_finite_in(result, output.dtype):
            raise MergeError(_not_finite(planned, output, arrays))
        data = buffers.raw[: count * FLOATS[output.dtype].itemsize]
        narrow(result, output.dtype, data, scratch.view(np.uint32))
        _append(file, digest, data.data)


def _slerp_weights(planned: Plan, output: Output, handles: dict[Path, int], buffers: _Buffers) -> tuple[float, float]:
    """One pass over both tensors for their angle."""
    dot = first = second = 0.0
    for start, count in _chunks(output):
        a, b = (buffers.load(i, handles[t.file], t, start, count) for i, t in enumerate(output.sources))
        sums = methods.products(a, b)
        dot, first, second = dot + sums[0], first + sums[1], second + sums[2]
    if not np.isfinite([dot, first, second]).all():
        raise MergeError(f"{output.name}: a source holds NaN or infinity, or its norm overflows")
    return methods.slerp_weights(planned.recipe.t, dot, (first, second))


def _not_finite(planned: Plan, output: Output, arrays: list[methods.Floats]) -> str:
    sources = [str(m.folder) for m, a in zip(planned.models, arrays, strict=True) if not np.isfinite(a).all()]
    if sources:
        return f"{output.name}: NaN or infinity in {', '.join(sources)}"
    return f"{output.name}: the merged values overflow {output.dtype}"


def _write_index(planned: Plan, folder: Path) -> None:
    if not (planned.models[0].folder / INDEX).exists():
        return
    outputs = [(file, output) for file, listed in planned.files.items() for output in listed]
    total = sum(output.sources[0].values * FLOATS[output.dtype].itemsize for _, output in outputs)
    weight_map = {output.name: file for file, output in sorted(outputs, key=lambda pair: pair[1].name)}
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _copy_files(planned: Plan, folder: Path) -> None:
    source = planned.models[0].folder
    for path in sorted({path for pattern in _COPIED for path in source.glob(pattern) if path.is_file()}):
        shutil.copyfile(path, folder / path.name)
        with (folder / path.name).open("rb") as file:
            os.fsync(file.fileno())
    dtype = planned.recipe.dtype
    if dtype and planned.models[0].config:
        names = [name for name in ("dtype", "torch_dtype") if name in planned.models[0].config] or ["torch_dtype"]
        (folder / "config.json").unlink()
        _write_json(folder / "config.json", planned.models[0].config | dict.fromkeys(names, dtype))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _lineage(planned: Plan, written: list[dict[str, Any]]) -> dict[str, Any]:
    """What the merged weights are made of. No clock and no seed: nothing in a merge is random."""
    return {
        "lineage_version": 1,
        "made_by": f"trajmill {metadata.version('trajmill')}",
        "recipe": planned.recipe.model_dump(mode="json"),
        "files": written,
        "parents": [_parent(model) for model in planned.models],
    }


def _parent(model: Checkpoint) -> dict[str, Any]:
    return {
        "path": str(model.folder),
        "files": [{"file": f.name, "bytes": f.stat().st_size, "sha256": sha256_of(f)} for f in model.files],
        "lineage": model.lineage,
    }
