"""One step: the slices' tokens in, a sampled token for each sequence that is ready out. Called by `worker`."""

import torch

from agents.engine.attention import Span
from agents.engine.models.llama import Cache, Llama
from agents.engine.sampler import Draw, sample
from agents.engine.scheduler import Step
from agents.engine.sequence import Sequence


class Runner:
    """A model, the keys and values of one thread's sequences, and the ids that may never be sampled."""

    def __init__(self, model: Llama, cache: Cache, banned: list[int], eos_id: int) -> None:
        """`banned`: control tokens other than the end of a turn."""
        self.model, self.cache = model, cache
        self._banned, self._eos_id = banned, eos_id

    @torch.inference_mode()
    def run(self, step: Step) -> list[tuple[Sequence, Draw]]:
        """Compute the slices, and sample for each sequence of which nothing is left to compute."""
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
        sequences = [sequence for sequence, _ in ready]
        return list(zip(sequences, sample(logits, sequences, self._banned, self._eos_id), strict=True))
