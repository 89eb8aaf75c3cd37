"""How a model is trained on shards. Called by `pipelines.posttrain`."""

from typing import Literal

from pydantic import Field

from schemas.recipe import Settings


class TrainSettings(Settings):
    """Supervised fine-tuning of all weights. Two runs with equal settings on the same data give the same bytes."""

    epochs: int = Field(default=2, ge=1)
    """Passes over the examples, each in an order of its own; the last step of the last may be smaller."""
    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps in all, instead of epochs."""
    batch_samples: int = Field(default=8, ge=1)
    """Examples of one optimizer step."""
    pack_tokens: int = Field(default=1024, ge=1)
    """Tokens computed at once, the shared prefix counted once: bounds memory. A longer example goes alone."""
    share_prefix: bool = True
    """Compute the untrained beginning that the examples of a pack have in common once. The result is the same."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """After the warm-up, of AdamW."""
    warmup_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the steps in which the learning rate rises from 0."""
    final_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the learning rate that the cosine ends at."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of matrices; norms and biases have none."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the gradient's mean."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the mean of its square."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of a step's gradient."""
    save_every: int = Field(default=50, ge=1)
    """Steps between two checkpoints: what a kill can cost."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of the order of the examples, the only random thing."""
    threads: int = Field(default=2, ge=1)
    """Of torch on the CPU. Another number gives other last bits."""
    device: Literal["cpu", "cuda"] = "cpu"
    """cpu computes in float32; cuda in bfloat16, with float32 weights in the optimizer."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Of the weights written."""
