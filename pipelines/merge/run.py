"""Runs a merge: plan, stream, write, publish. Called by the command `trajmill merge`.

The unit of work is one output shard, or one parent file to hash; any number of workers gives the same bytes. Everything
is written into `<out>.tmp/files`, which is renamed at the end, so `out` is whole or absent. The notes of what is
finished lie in `<out>.tmp/notes`, apart, so that they outlive that rename: a merge killed at any moment has lost no
finished file. They are for the same merge; another one clears them.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pipelines.files import atomic_file, fsync_folder, sha256_of, write_text
from pipelines.merge import native
from pipelines.merge.checkpoint import INDEX, Checkpoint
from pipelines.merge.chunks import Loader, inputs, ranges
from pipelines.merge.methods import METHODS
from pipelines.merge.methods.base import Job
from pipelines.merge.methods.linear import factors
from pipelines.merge.plan import Output, Plan, copied, output_bytes, plan
from pipelines.merge.tensors import header_bytes
from schemas.errors import MergeError
from schemas.merge import MergeRecipe

_FILES, _NOTES = "files", "notes"
_FAILED = ".failed-"
# A united vocabulary stands in tokenizer.json; these would say something else.
_OLD_VOCABULARY = ("vocab.*", "merges.txt", "added_tokens.json", "tokenizer.model")


def merge(recipe: MergeRecipe, out: Path, workers: int = 1, beam_options: Sequence[str] = ()) -> Path:
    """Merge checkpoints into the new folder `out` and give it back.

    The base, else the first model, gives layout, configuration and tokenizer. `lineage.json` names recipe, parents with
    SHA-256, their own lineage, and the files written. With one worker and no options for Beam it runs in this process.
    Raises MergeError when `out` exists, the checkpoints do not fit (all misfits listed, nothing written), or a value is
    not finite (tensor and source named).
    """
    _refuse_existing(out)
    planned = plan(recipe)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _publishing(planned, out) as work:
        todo = [unit for unit in units(planned) if _finished(planned, unit, work) is None]
        if workers > 1 or beam_options:
            from pipelines.transforms.merge import do_units  # Beam takes a second to import

            do_units(planned, todo, work, workers, beam_options)
        else:
            # Hashing, reading and the kernels hold no lock of Python's.
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                try:
                    for done in [pool.submit(do_unit, unit, planned, work) for unit in todo]:
                        done.result()
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        written = {unit: _result(planned, unit, work) for unit in units(planned)}
        folder = work / _FILES
        _copy_files(planned, folder)
        _write_index(planned, folder)
        _write_json(folder / "lineage.json", _lineage(planned, written))
    return out


def units(planned: Plan) -> list[str]:
    """Names of all units of work: files to write, and `parent-<i>-<file>` for files to hash."""
    parents = [f"parent-{i}-{f.name}" for i, checkpoint in enumerate(planned.checkpoints) for f in checkpoint.files]
    return [*planned.files, *parents]


def do_unit(unit: str, planned: Plan, work: Path) -> None:
    """Do one unit of work in the merge's folder, and note its result there when all is on disk."""
    result = write_shard(planned, unit, work / _FILES) if unit in planned.files else hash_parent(planned, unit)
    write_text(_note(work, unit), json.dumps({"plan": planned.digest, **result}))


def _note(work: Path, unit: str) -> Path:
    return work / _NOTES / f"{unit}.json"


def hash_parent(planned: Plan, unit: str) -> dict[str, Any]:
    """Name, bytes and SHA-256 of a parent's weight file."""
    _, number, name = unit.split("-", 2)
    path = planned.checkpoints[int(number)].folder / name
    return {"file": name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}


def write_shard(planned: Plan, file: str, folder: Path) -> dict[str, Any]:
    """Merge the tensors of one output file and write it; gives name, bytes and SHA-256.

    It appears complete or not at all. Raises MergeError for a value that is not finite.
    """
    outputs = planned.files[file]
    loader = Loader(outputs, planned.vocabulary, planned.recipe.missing_token)
    digest = hashlib.sha256()
    with loader, atomic_file(folder / file) as temporary, temporary.open("xb", buffering=0) as target:
        header = header_bytes({output.name: (output.dtype, output.shape) for output in outputs})
        _append(target, digest, memoryview(header))
        for output in outputs:
            for data in _merged(planned, output, loader):
                _append(target, digest, data)
        size = target.tell()
    return {"file": file, "bytes": size, "sha256": digest.hexdigest()}


def _append(file: BinaryIO, digest: "hashlib._Hash", data: memoryview) -> None:
    digest.update(data)
    while data:
        data = data[file.write(data) :]


def _merged(planned: Plan, output: Output, loader: Loader) -> Iterator[memoryview]:
    """The tensor's bytes piece by piece, computed in float32 and rounded once."""
    job = Job(
        output.name,
        output.shape,
        output.parameters,
        output.options,
        planned.recipe.seed,
        output.base is not None,
        partial(loader.chunks, output),
    )
    try:
        if planned.recipe.method == "linear" and not output.per_token and native.library() is not None:
            yield from _weighted(planned, output, loader, job)
            return
        # What overflows is found after rounding.
        with np.errstate(over="ignore", invalid="ignore"):
            combine = METHODS[planned.recipe.method].prepare(job)
        for chunk in loader.chunks(output):
            count = chunk.models[0].size
            with np.errstate(over="ignore", invalid="ignore"):
                combine(chunk, loader.merged(count))
            data = loader.stored(loader.merged(count), output.dtype)
            if data is None:
                raise _not_finite(output, loader, chunk.start, count)
            yield data.data
    except MergeError:
        raise
    except ValueError as error:
        for start, count in ranges(output.shape):
            if _sources_not_finite(output, loader, start, count):
                raise _not_finite(output, loader, start, count) from error
        raise MergeError(f"{output.name}: {error}") from error


def _weighted(planned: Plan, output: Output, loader: Loader, job: Job) -> Iterator[memoryview]:
    """linear without float32 buffers: the same bits in a fraction of the memory traffic."""
    weights = factors(job)
    dtypes = [tensor.dtype for tensor in output.models]
    for start, count in ranges(output.shape):
        target = loader.target(output.dtype, count)
        if not native.weighted_sum(loader.raw(output, start, count), dtypes, weights, target, output.dtype):
            raise _not_finite(output, loader, start, count)
        yield target.data


def _sources_not_finite(output: Output, loader: Loader, start: int, count: int) -> list[str]:
    found = zip(inputs(output), loader.floats(output, start, count), strict=True)
    return list(dict.fromkeys(str(t.file.parent) for t, values in found if not np.isfinite(values).all()))


def _not_finite(output: Output, loader: Loader, start: int, count: int) -> MergeError:
    sources = _sources_not_finite(output, loader, start, count)
    if sources:
        return MergeError(f"{output.name}: NaN or infinity in {', '.join(sources)}")
    return MergeError(f"{output.name}: the merged values overflow {output.dtype}")


@contextmanager
def _publishing(planned: Plan, out: Path) -> Iterator[Path]:
    """`<out>.tmp`, ours alone; its files become `out` after a good end.

    An error removes it; a kill or an interrupt leaves the finished units, which the same merge finds there. (A kill
    after the rename leaves notes without files. The next merge into `out` clears them.)
    """
    work = out.with_name(out.name + ".tmp")
    work.mkdir(exist_ok=True)
    handle = os.open(work, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MergeError(f"{work}: another merge into {out} is running") from error
        _refuse_existing(out)
        try:
            _clear(planned, work)
            yield work
            fsync_folder(work / _FILES)
            _refuse_existing(out)
            (work / _FILES).rename(out)
        except Exception:
            # Under another name: workers that have not heard of the error yet find no folder to write into.
            _remove(work.rename(out.with_name(f"{out.name}{_FAILED}{os.getpid()}")))
            raise
        fsync_folder(out.parent)
        _remove(work)
        for other in out.parent.iterdir():
            # Of a merge that was killed while it removed it.
            if other.name.startswith(out.name + _FAILED) and other.name.removeprefix(out.name + _FAILED).isdigit():
                _remove(other)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)  # another merge may be removing it too
    else:
        path.unlink()


def _clear(planned: Plan, work: Path) -> None:
    """Remove all but the finished units of this very merge."""
    finished = [unit for unit in units(planned) if _finished(planned, unit, work) is not None]
    inner = [work / _FILES, work / _NOTES]
    kept = {*inner, *(work / _FILES / unit for unit in finished), *(_note(work, unit) for unit in finished)}
    for folder in inner:
        folder.mkdir(exist_ok=True)
    for folder in (work, *inner):
        for leftover in folder.iterdir():
            if leftover not in kept:
                _remove(leftover)


def _finished(planned: Plan, unit: str, work: Path) -> dict[str, Any] | None:
    """The result of a unit that is done; None when it is not."""
    note = _note(work, unit)
    if not note.exists():
        return None
    result: dict[str, Any] = json.loads(note.read_bytes())
    if result.pop("plan") != planned.digest:
        return None
    path = work / _FILES / unit
    if unit in planned.files and not (path.exists() and path.stat().st_size == result["bytes"]):
        return None
    return result


def _result(planned: Plan, unit: str, work: Path) -> dict[str, Any]:
    result = _finished(planned, unit, work)
    if result is None:
        raise MergeError(f"{_note(work, unit)}: a worker has not written it here; workers need a file system in common")
    return result


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise MergeError(f"{out} exists; a merge never writes over anything")


def _write_index(planned: Plan, folder: Path) -> None:
    if list(planned.files) == ["model.safetensors"]:
        return
    outputs = [(file, output) for file, listed in planned.files.items() for output in listed]
    total = sum(output_bytes(output) for _, output in outputs)
    weight_map = {output.name: file for file, output in sorted(outputs, key=lambda pair: pair[1].name)}
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _copy_files(planned: Plan, folder: Path) -> None:
    """Configuration and tokenizer of the first checkpoint, changed where the merge changes them."""
    first = planned.checkpoints[0]
    for path in copied(first):
        if planned.vocabulary is None or not any(path.match(pattern) for pattern in _OLD_VOCABULARY):
            with atomic_file(folder / path.name) as temporary:
                shutil.copyfile(path, temporary)
    if planned.config != first.config:
        _write_json(folder / "config.json", planned.config)
    if planned.vocabulary is not None:
        with atomic_file(folder / "tokenizer.json") as temporary:
            temporary.write_bytes(planned.vocabulary.tokenizer_json)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _lineage(planned: Plan, written: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the merged weights are made of. No clock: the same merge gives the same lineage."""
    return {
        "lineage_version": 1,
        "made_by": f"trajmill {metadata.version('trajmill')}",
        "recipe": planned.recipe.model_dump(mode="json"),
        "seed": planned.recipe.seed,
        "files": [written[file] for file in planned.files],
        "parents": [_parent(i, checkpoint, written) for i, checkpoint in enumerate(planned.checkpoints)],
    }


def _parent(number: int, checkpoint: Checkpoint, written: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "path": str(checkpoint.folder),
        "files": [written[f"parent-{number}-{file.name}"] for file in checkpoint.files],
        "lineage": checkpoint.lineage,
    }
