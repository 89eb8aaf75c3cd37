"""The exponential moving average of the checkpoints of one training run, as a merge. Called by the command line.

Averaging along a run: Polyak and Juditsky (1992); with decay as in "Mean teachers" (arXiv:1703.01780).
"""

from collections.abc import Sequence
from pathlib import Path

from schemas.errors import MergeError
from schemas.merge import MergeRecipe, Source


def ema_recipe(checkpoints: Sequence[Path | str], decay: float) -> MergeRecipe:
    """The linear merge that equals `ema = decay * ema + (1 - decay) * checkpoint` over `checkpoints`, oldest first.

    It starts with the first one, so the weights sum to 1. Raises MergeError without a checkpoint, or when `decay` is
    not in [0, 1).
    """
    if not checkpoints:
        raise MergeError("an average along a run needs a checkpoint")
    if not 0 <= decay < 1:
        raise MergeError(f"decay {decay} is not in [0, 1)")
    last = len(checkpoints) - 1
    weights = [(1.0 if i == 0 else 1 - decay) * decay ** (last - i) for i in range(last + 1)]
    models = [
        Source(model=str(folder), parameters={"weight": weight})
        for folder, weight in zip(checkpoints, weights, strict=True)
    ]
    return MergeRecipe(method="linear", models=models)
