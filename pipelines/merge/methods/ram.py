"""ram: "Reinforced Agent Merging" (2026, arXiv:2601.13572). Task vectors of RL runs are sparse and overlap little.

A value that only one model changed (by more than `epsilon`) takes that model's change whole; one that several changed
takes the mean of their changes: a change is not diluted by the models that never made one.
"""

import numpy as np

from pipelines.merge.methods.base import Chunk, Combine, Floats, Job, MethodSpec
from pipelines.merge.methods.vectors import task_vectors


def prepare(job: Job) -> Combine:
    """No pass over the data."""
    epsilon = np.float32(job.options["epsilon"])

    def combine(chunk: Chunk, out: Floats) -> None:
        changes = np.zeros_like(out)
        out[:] = 0
        for delta in task_vectors(chunk):
            changed = np.abs(delta) > epsilon
            changes += changed
            out += np.where(changed, delta, np.float32(0))
        out /= np.maximum(changes, 1)
        if chunk.base is not None:
            out += chunk.base

    return combine


RAM = MethodSpec(prepare, "required", (1, None), {}, {"epsilon": 1e-5})
