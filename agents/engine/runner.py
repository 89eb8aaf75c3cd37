"""One step: the slices' tokens in, a sampled token for each sequence that is ready out. Called by `engine`."""

import numpy as np
import torch

from agents.engine.attention import KV, Span
from agents.engine.grammar import Constraint
from agents.engine.models.llama import Llama
from agents.engine.sampler import Draw, distributions, draw
from agents.engine.scheduler import Slice
from agents.engine.sequence import ALIGN, Sequence


class Runner:
    """A model and the ids that may never be sampled (control tokens other than the end of a turn)."""

    def __init__(self, model: Llama, banned: list[int]) -> None:
        self._model = model
        self._banned = torch.zeros(model.shape.vocab_size, dtype=torch.bool)
        self._banned[banned] = True

    @torch.inference_mode()
    def run(self, slices: list[Slice]) -> list[tuple[Sequence, Draw]]:
        """Compute the slices (sequences move on by their counts) and sample where nothing is left to compute."""
        ids: list[int] = []
        positions: list[int] = []
        spans: list[Span] = []
        lasts: list[int] = []
        row = 0
        for part in slices:
            sequence, start = part.sequence, part.sequence.computed
            ids += sequence.ids[start : start + part.count]
            positions += range(start, start + part.count)
            spans += _spans(sequence, row, part.count)
            row += part.count
            lasts.append(row - 1)
        hidden = self._model.hidden(torch.tensor(ids), torch.tensor(positions), spans)
        ready = []
        for part, last in zip(slices, lasts, strict=True):
            part.sequence.computed += part.count
            if not part.sequence.pending:
                ready.append((part.sequence, last))
        if not ready:
            return []
        rows = hidden[[last for _, last in ready]]
        return self._sample([sequence for sequence, _ in ready], self._model.logits(rows))

    def _sample(self, sequences: list[Sequence], logits: torch.Tensor) -> list[tuple[Sequence, Draw]]:
        masks = self._banned.expand(len(sequences), -1).clone()
        for row, sequence in enumerate(sequences):
            if isinstance(sequence.matcher, Constraint):
                masks[row] |= torch.from_numpy(sequence.matcher.forbidden(masks.shape[1]))
        samplings = [s.sampling for s in sequences]
        rows = distributions(logits, samplings, masks).numpy()
        return [
            (sequence, draw(np.ascontiguousarray(row), sequence.sampling, len(sequence.ids) - sequence.prompt))
            for sequence, row in zip(sequences, rows, strict=True)
        ]


def _spans(sequence: Sequence, row: int, count: int) -> list[Span]:
    """The next `count` tokens of a sequence, cut where pieces end (see `sequence.ALIGN`)."""
    if not isinstance(sequence.kv, KV):
        raise TypeError("the sequence has no buffer")
    spans = []
    start, stop = sequence.computed, sequence.computed + count
    while start < stop:
        end = min(stop, (start // ALIGN + 1) * ALIGN)
        spans.append(Span(sequence.kv, row, start, end - start))
        row, start = row + end - start, end
    return spans
