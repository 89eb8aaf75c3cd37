"""A request stopped at a token boundary, as something that can be saved and continued elsewhere (S9).

Made and taken back by `worker`; callers save and load it. The file is safetensors: tensors and JSON, nothing that runs.
The state of sampler and grammar follows from ids, seed and grammar: draws are hashes of seed and position, and the
grammar is replayed over the ids of the reply.
"""

import dataclasses
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from agents.engine.base import Alternative, Sampling
from schemas.errors import InputError

_KEY = "trajmill.paused"


@dataclass(frozen=True, eq=False)
class Paused:
    """`ids[:computed]` have keys and values in `full` (bytes of the blocks of all of them) and in `window` (of the
    blocks `window_at` of sliding-window layers). `layout` names the model's shape and the format of the bytes."""

    layout: str
    conversation: str
    ids: tuple[int, ...]
    prompt: int
    context: int
    limit: int
    sampling: Sampling
    priority: int
    owner: str
    grammar: str | None
    computed: int
    cached: int
    logprobs: tuple[float, ...]
    raw_logprobs: tuple[float | None, ...]
    top: tuple[tuple[Alternative, ...], ...]
    versions: tuple[tuple[str, int], ...]
    window_at: tuple[int, ...]
    full: torch.Tensor
    window: torch.Tensor

    def save(self, path: Path) -> None:
        """Write the state to a file, whole or not at all."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("full", "window")}
        fields["sampling"] = dataclasses.asdict(self.sampling)
        fields["top"] = [[(one.token, one.logprob) for one in alternatives] for alternatives in self.top]
        scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        tensors = {"full": self.full.contiguous(), "window": self.window.contiguous()}
        try:
            save_file(tensors, scratch, {_KEY: json.dumps(fields)})
            with scratch.open("rb") as file:
                os.fsync(file.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)


def load_paused(path: Path) -> Paused:
    """Read a saved state. InputError when the file is none."""
    try:
        with safe_open(path, framework="pt") as file:
            fields: dict[str, Any] = json.loads((file.metadata() or {})[_KEY])
            full, window = file.get_tensor("full"), file.get_tensor("window")
        fields["sampling"]["stop"] = tuple(fields["sampling"]["stop"])
        fields["sampling"] = Sampling(**fields["sampling"])
        fields["top"] = tuple(tuple(Alternative(*one) for one in alternatives) for alternatives in fields["top"])
        fields["versions"] = tuple((str(name), int(count)) for name, count in fields["versions"])
        for name in ("ids", "logprobs", "raw_logprobs", "window_at"):
            fields[name] = tuple(fields[name])
        return Paused(**fields, full=full, window=window)
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{path} is not the state of a paused request: {error!r}") from error
