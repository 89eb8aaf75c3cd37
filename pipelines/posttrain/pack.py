"""Examples put together for one pass through the model. Called by `sft`.

Samples of one scaffold begin with the same system prompt, which nobody trains on. A pack holds that beginning once;
each sample attends to it and to its own tokens, never to another sample. The result is that of separate sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipelines.posttrain.examples import Example


@dataclass(frozen=True)
class Pack:
    """`examples` whose first `prefix` tokens are equal. In a flat row: the prefix, then each example's own tokens."""

    examples: tuple[Example, ...]
    prefix: int

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return self.prefix + sum(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """Own tokens of each example."""
        return [len(e.input_ids) - self.prefix for e in self.examples]

    @cached_property
    def input_ids(self) -> npt.NDArray[np.int64]:
        """[tokens]."""
        own = [e.input_ids[self.prefix :] for e in self.examples]
        return np.concatenate([self.examples[0].input_ids[: self.prefix], *own]).astype(np.int64)

    @cached_property
    def positions(self) -> npt.NDArray[np.int64]:
        """[tokens]: each token's place in its own sequence."""
        return np.concatenate([np.arange(self.prefix), *(self.prefix + np.arange(n) for n in self.lengths)])

    @cached_property
    def predictions(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """[trained tokens] rows that predict them, and their ids. A prefix's last row may predict several."""
        rows, targets = [], []
        start = self.prefix
        for example, length in zip(self.examples, self.lengths, strict=True):
            trained = np.flatnonzero(example.loss_mask[1:]) + 1
            before = trained - 1
            rows.append(np.where(before < self.prefix, before, before - self.prefix + start))
            targets.append(example.input_ids[trained])
            start += length
        return np.concatenate(rows).astype(np.int64), np.concatenate(targets).astype(np.int64)


def packs_of(examples: Sequence[Example], max_tokens: int, *, share_prefix: bool = True) -> list[Pack]:
    """Every example in one pack; a pack has at most `max_tokens` tokens, or one example.

    Greedy over the examples in the order of their ids, so that those with a common beginning are neighbours. One joins
    where the pack then costs no more tokens than it and the example apart.
    """
    packs: list[Pack] = []
    for example in sorted(examples, key=lambda e: (e.input_ids.tolist(), e.sample_id)):
        if packs:
            last = packs[-1]
            prefix = min(_shared(last.examples[0], example), _free(last, share_prefix)) if share_prefix else 0
            joined = Pack((*last.examples, example), prefix)
            if joined.tokens <= min(max_tokens, last.tokens + len(example.input_ids)):
                packs[-1] = joined
                continue
        packs.append(Pack((example,), 0))
    return packs


def _free(pack: Pack, share_prefix: bool) -> int:
    """The longest prefix that `pack` allows."""
    return pack.prefix if len(pack.examples) > 1 and share_prefix else len(pack.examples[0].input_ids)


def _shared(one: Example, other: Example) -> int:
    """Length of the common untrained beginning; each keeps at least one token of its own."""
    length = min(len(one.input_ids), len(other.input_ids)) - 1
    ends = (one.input_ids[:length] != other.input_ids[:length]) | one.loss_mask[:length] | other.loss_mask[:length]
    return int(ends.argmax()) if ends.any() else length
