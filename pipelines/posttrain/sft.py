"""Supervised fine-tuning on our shards: the reference trainer. Called by the `train` command and the loop.

The loss is the mean over all trained tokens of an optimizer step, however they are packed. AdamW (arXiv:1711.05101)
with decay on matrices only, linear warm-up, cosine (arXiv:1608.03983), gradient clipping.
"""

import json
import logging
import math
import platform
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.engine.weights import open_checkpoint
from pipelines.posttrain import checkpoint
from pipelines.posttrain.examples import Example
from pipelines.posttrain.model import Decoder
from pipelines.posttrain.pack import packs_of
from pipelines.store import locked
from schemas.errors import ConfigError, InputError, StageError
from schemas.ids import content_id, derive_seed
from schemas.posttrain import TrainSettings

log = logging.getLogger(__name__)

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Step:
    """One optimizer step, as `losses.jsonl` lists it.

    `loss`: nats per trained token, before the step. `trained`, `seen`, `computed`: tokens in the loss, in the examples,
    and in the packs. `gradient`: norm before clipping. `wall_s`: seconds, the only column that is not reproducible.
    """

    step: int
    loss: float
    learning_rate: float
    gradient: float
    trained: int
    seen: int
    computed: int
    wall_s: float


def train(base: Path, examples: Sequence[Example], out: Path, settings: TrainSettings, lineage: dict[str, Any]) -> Path:
    """Train the checkpoint folder `base` on `examples` and write `out`, a folder of the same form.

    `lineage` says where the examples come from; it goes into `out/lineage.json` with all the rest. The same call
    continues what was stopped, from the last checkpoint in `.NAME.training` beside `out`, to the same bytes; where
    `out` is finished, it does nothing. ConfigError when `out` or the stopped run was asked for with something else;
    StageError when the loss or the gradient is not finite.
    """
    _check(examples, out, base)
    facts = {
        "examples": {"samples": len(examples), "sha256": _digest(examples), "lineage": lineage},
        "base": {"name": base.resolve().name, "sha256": checkpoint.weight_hashes(base)}
        | {"lineage": checkpoint.read_lineage(base)},
        "settings": settings.model_dump(mode="json"),
    }
    # How often it is saved does not change the weights.
    identity = content_id("train", facts | {"settings": settings.model_dump(mode="json", exclude={"save_every"})})
    if out.exists():
        if (checkpoint.read_lineage(out) or {}).get("identity") != identity:
            raise ConfigError(
                f"{out} was made from another base, other examples or other settings; give another folder"
            )
        # Of a process that was killed between publishing and clearing up.
        shutil.rmtree(out.with_name(f".{out.name}.training"), ignore_errors=True)
        return out
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        return _Training(base, examples, out, settings, identity).run(facts)
    finally:
        torch.set_num_threads(threads)


def _check(examples: Sequence[Example], out: Path, base: Path) -> None:
    if not examples:
        raise InputError(f"{out}: there is no example to train on")
    if len({e.sample_id for e in examples}) != len(examples):
        raise InputError(f"{out}: a sample stands twice among the {len(examples)} examples")
    if not base.is_dir():
        raise ConfigError(f"{base} is no checkpoint folder; `smollm2` and .gguf files are exported first")
    for example in examples:
        if not example.loss_mask[1:].any():
            raise InputError(f"{out}: sample {example.sample_id} has no trained token")


def _digest(examples: Sequence[Example]) -> str:
    whole = sha256()
    for e in sorted(examples, key=lambda e: e.sample_id):
        whole.update(f"{e.sample_id} {len(e.input_ids)}\n".encode())
        whole.update(e.input_ids.astype("<i4").tobytes() + e.loss_mask.astype(np.uint8).tobytes())
    return whole.hexdigest()


def batch_of(examples: Sequence[Example], step: int, settings: TrainSettings) -> list[Example]:
    """The examples of optimizer step `step` (from 0); each epoch has an order of its own, drawn from the seed."""
    count, size = len(examples), settings.batch_samples
    end = (step + 1) * size if settings.steps else min((step + 1) * size, settings.epochs * count)
    chosen: list[Example] = []
    for place in range(step * size, end):
        if not chosen or place % count == 0:
            order = _order(examples, settings.seed, place // count)
        chosen.append(order[place % count])
    return chosen


def _order(examples: Sequence[Example], seed: int, epoch: int) -> list[Example]:
    # By a hash of each id: neither the order given nor a library's generator decides.
    return sorted(examples, key=lambda e: derive_seed("order", seed, epoch, e.sample_id))


def learning_rate(step: int, steps: int, settings: TrainSettings) -> float:
    """Of optimizer step `step` (from 0) of `steps`: linear warm-up, then a cosine down to `final_share`."""
    warmup = math.ceil(settings.warmup_share * steps)
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    low = settings.final_share
    return settings.learning_rate * (low + (1 - low) * (1 + math.cos(math.pi * done)) / 2)


class _Training:
    def __init__(
        self, base: Path, examples: Sequence[Example], out: Path, settings: TrainSettings, identity: str
    ) -> None:
        self.base, self.examples, self.out, self.settings, self.identity = base, examples, out, settings, identity
        self.work = out.with_name(f".{out.name}.training")
        self.state = self.work / "state.safetensors"
        self.steps = settings.steps or math.ceil(len(examples) * settings.epochs / settings.batch_samples)
        if settings.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device 'cuda': torch finds no CUDA device")
        shape, read = open_checkpoint(base)
        longest = max(examples, key=lambda e: len(e.input_ids))
        if len(longest.input_ids) > shape.context:
            raise ConfigError(
                f"sample {longest.sample_id} has {len(longest.input_ids)} tokens, {base} takes {shape.context}"
            )
        largest = max(int(e.input_ids.max()) for e in examples)
        if largest >= shape.vocab_size:
            raise InputError(f"token id {largest} among the examples: {base} has only {shape.vocab_size} tokens")
        self.model = Decoder(shape, read, settings.device)
        parameters = self.model.parameters.values()
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(settings.beta1, settings.beta2), fused=True)
        self.losses: list[Step] = []

    def run(self, facts: dict[str, Any]) -> Path:
        with locked(self.work):
            return self._run(facts)

    def _run(self, facts: dict[str, Any]) -> Path:
        if self.state.exists():
            self._load()
        while len(self.losses) < self.steps:
            done = self._step(len(self.losses))
            self.losses.append(done)
            log.info("step %d of %d: loss %.4f, %.1f s", done.step, self.steps, done.loss, done.wall_s)
            if done.step % self.settings.save_every == 0 and done.step < self.steps:
                self._save()
        whole = facts | {
            "identity": self.identity,
            "made_by": "trajmill train",
            "seed": self.settings.seed,
            "steps": self.steps,
            "tokens_trained": sum(s.trained for s in self.losses),
            "tokens_seen": sum(s.seen for s in self.losses),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        }
        result = checkpoint.fresh(self.work / "result")
        checkpoint.finish(self.base, self.model.parameters, self.settings.dtype, whole, self._lines(), result)
        checkpoint.publish(result, self.out)
        shutil.rmtree(self.work)
        return self.out

    def _step(self, step: int) -> Step:
        started = time.monotonic()
        batch = batch_of(self.examples, step, self.settings)
        packs = packs_of(batch, self.settings.pack_tokens, share_prefix=self.settings.share_prefix)
        trained = sum(int(e.loss_mask[1:].sum()) for e in batch)
        total = 0.0
        for pack in packs:
            loss = self.model.loss_sum(pack) / trained
            total += loss.item()
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters.values(), self.settings.clip).item()
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise StageError(
                f"step {step + 1}: loss {total}, gradient norm {norm}; the checkpoint before it is in {self.work}, "
                f"a smaller learning_rate than {self.settings.learning_rate} may help"
            )
        rate = learning_rate(step, self.steps, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        seen, computed = sum(len(e.input_ids) for e in batch), sum(p.tokens for p in packs)
        return Step(step + 1, total, rate, norm, trained, seen, computed, round(time.monotonic() - started, 3))

    def _save(self) -> None:
        tensors = {}
        for name, weight in self.model.parameters.items():
            tensors[f"weight.{name}"] = weight
            tensors |= {f"{moment}.{name}": self.optimizer.state[weight][moment] for moment in _MOMENTS}
        checkpoint.save_tensors(tensors, self.state, {"identity": self.identity, "losses": self._lines()})

    def _load(self) -> None:
        tensors, metadata = checkpoint.load_tensors(self.state)
        if metadata.get("identity") != self.identity:
            raise ConfigError(
                f"{self.work} is a stopped training from another base, other examples or other settings; "
                "delete it to begin anew"
            )
        self.losses = [Step(**json.loads(line)) for line in metadata["losses"].splitlines()]
        with torch.no_grad():
            for name, weight in self.model.parameters.items():
                weight.copy_(tensors[f"weight.{name}"])
                moments = {moment: tensors[f"{moment}.{name}"].to(weight.device) for moment in _MOMENTS}
                count = torch.tensor(float(len(self.losses)), device=weight.device)
                self.optimizer.state[weight] = {"step": count} | moments
        log.info("going on after step %d of %d", len(self.losses), self.steps)

    def _lines(self) -> str:
        return "".join(json.dumps(vars(step)) + "\n" for step in self.losses)
