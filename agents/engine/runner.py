"""One step: the slices' tokens in, a sampled token for each sequence that is ready out. Called by `worker`."""

import torch

from agents.engine.attention import Span
from agents.engine.models.llama import Cache, Llama
from agents.engine.sampler import Draw, sample
from agents.engine.scheduler import Step
from agents.engine.sequence import Sequence
from schemas.errors import EngineError


class Runner:
    """A model, the keys and values of one thread's sequences, and the ids that may never be sampled."""

    def __init__(self, model: Llama, cache: Cache, banned: list[int], eos_id: int) -> None:
        """`banned`: control tokens other than the end of a turn."""
        self.model, self.cache = model, cache
        self._banned, self._eos_id = banned, eos_id

    @torch.inference_mode()
    def run(self, step: Step) -> list[tuple[Sequence, Draw | EngineError]]:
        """Compute the slices, and sample for each sequence of which nothing is left to compute. An error instead of a
        draw: the weights, or the state of a paused request, make no numbers for it."""
        self.cache.full.copy(step.copies)
        self.cache.window.copy(step.window_copies)
        ids: list[int] = []
        spans: list[Span] = []
        ready: list[tuple[Sequence, int]] = []
        for part in step.slices:
            sequence, stop = part.sequence, part.start + part.count
            ids += sequence.ids[part.start : stop]
            spans.append(Span(sequence.table, part.start, part.count, sequence.kept, sequence.window))
            if stop == len(sequence.ids):
                ready.append((sequence, len(ids) - 1))
        hidden = self.model.hidden(ids, spans, self.cache)
        if not ready:
            return []
        logits = self.model.logits(hidden[[row for _, row in ready]])
        broken = ~logits.amax(-1).isfinite()
        logits[broken] = 0
        sequences = [sequence for sequence, _ in ready]
        draws = sample(logits, sequences, self._banned, self._eos_id)
        failed = EngineError("the model's logits are not finite")
        return [(s, failed if bad else d) for s, d, bad in zip(sequences, draws, broken.tolist(), strict=True)]
