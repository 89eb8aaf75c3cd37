"""How a model is trained on shards, evaluated and merged, and the loop of it all. Called by `pipelines.posttrain`."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from schemas.merge import Method, Parameters
from schemas.recipe import (
    PlaySettings,
    RolloutSettings,
    RunConfig,
    SandboxSettings,
    Settings,
    TaskSettings,
)
from schemas.record import Effort


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


class EvaluationSettings(Settings):
    """How a checkpoint is tried on held-out tasks: one agent, one scaffold at a time."""

    repeats: int = Field(default=1, ge=1)
    """Attempts at each task, for pass@k; above 1 only with a temperature."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus."""
    effort: Effort = 50
    """Reasoning effort b of every attempt; that of the samples trained on."""
    max_turns: int = Field(default=4, ge=1)
    """Turns of an attempt, at most those of the task."""
    max_reply_tokens: int = Field(default=256, ge=1)
    """Sampled tokens per reply at effort 100."""
    concurrency: int = Field(default=64, ge=1)
    """Attempts in flight. Does not change what happens."""
    context: int = Field(default=4096, ge=256)
    """Longest conversation in tokens, demonstrations included."""
    precision: Literal["auto", "fp16", "fp32", "int8", "bf16"] = "auto"
    """Weights of the embedded engine."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where it computes."""
    sandbox: SandboxSettings = SandboxSettings()
    """Limits of a sandbox."""

    @model_validator(mode="after")
    def _draws_what_it_repeats(self) -> Self:
        if self.repeats > 1 and not self.temperature:
            raise ValueError("repeats above 1 need a temperature: greedy attempts are all the same")
        return self


class MergeArm(Settings):
    """One way to merge the parents of a seed."""

    method: Method
    """Merge method."""
    parameters: Parameters = {}
    """Of the method; `weight` is that of every parent."""


class SearchSettings(Settings):
    """How the parents' weights of one more merge are chosen, on development tasks alone."""

    method: Method = "task_arithmetic"
    """Merge method."""
    parameters: Parameters = {}
    """Of the method, weights left out."""
    start: float = 0.5
    """Weight of every parent that the search begins with."""
    step: float = Field(default=0.25, gt=0)
    """First step of each weight; halved when no step helps."""
    evaluations: int = Field(default=6, ge=1)
    """Merges tried, the start included."""
    optimizer: Literal["coordinate", "cma"] = "coordinate"
    """Coordinate search, or CMA-ES (arXiv:1604.00772) by the library `cmaes`."""


Start = Literal["merge", "mixture", "parent"]


class RoundTwo(Settings):
    """The second round: a checkpoint of the first plays new tasks, and what was verified joins the training data."""

    starts: list[Start] = ["merge", "mixture", "parent"]
    """Where it starts from: best merge and best parent by the development tasks, the mixture at all parents' steps."""
    tasks: int = Field(default=120, ge=1)
    """New training tasks to play, in every scaffold."""
    repeats: int = Field(default=2, ge=1)
    """Attempts at each; those that pass are kept."""
    temperature: float = Field(default=0.7, gt=0)
    """Of these attempts."""
    samples: int = Field(default=120, ge=1)
    """Examples of the first round that join, for each scaffold."""


_TRAIN = TrainSettings(epochs=1, save_every=10)
_RUN = RunConfig(
    tasks=TaskSettings(families=["errands"], per_family=600, eval_share=0.0),
    rollout=RolloutSettings(plays=[PlaySettings(policy="blueprint", layouts=["solo"], efforts=[50])]),
)


class LoopSettings(Settings):
    """The loop: usage, shards, a checkpoint per scaffold, merges, everything on held-out tasks, and once more."""

    run: RunConfig = _RUN
    """The pipeline that makes the first round's shards: errands, reference actions (synthetic)."""
    base: str = "smollm2"
    """What all checkpoints start from: smollm2, a .gguf file or a folder of safetensors."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(default=[0], min_length=1)
    """Of training: which samples, in which order. More can be added later."""
    scaffolds: list[str] = Field(default=["tool_json", "bash_minimal"], min_length=2)
    """One parent is trained for each."""
    samples: int = Field(default=240, ge=1)
    """Examples of a parent."""
    shots: int = Field(default=3, ge=1)
    """Demonstrations of the few-shot arm, of different kinds."""
    train: TrainSettings = _TRAIN
    """Training of a parent; its seed is the arm's."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """How every arm is tried."""
    test_tasks: int = Field(default=60, ge=2)
    """Held-out tasks of the table, each with a wording of its own. Ten points need about 200."""
    dev_tasks: int = Field(default=24, ge=2)
    """Held-out tasks by which weights, the best merge and the best parent are chosen; wordings the table has not."""
    transfer_tasks: int = Field(default=0, ge=0)
    """Tasks of an environment that no training saw, for parents, mixtures and merges."""
    merges: dict[Annotated[str, Field(pattern="^[a-z0-9_]+$")], MergeArm] = Field(
        default={
            "linear": MergeArm(method="linear"),
            "task_arithmetic": MergeArm(method="task_arithmetic", parameters={"weight": 0.75}),
            "ties": MergeArm(method="ties", parameters={"density": 0.5}),
        },
        min_length=1,
    )
    """Merges of a seed's parents, by name."""
    search: SearchSettings | None = None
    """One more merge whose weights are searched for; null for none."""
    round_two: RoundTwo | None = None
    """The second round; null for none."""

    @model_validator(mode="before")
    @classmethod
    def _on_top_of_the_defaults(cls, data: Any) -> Any:
        """What `run` and `train` leave out is as above, not as in a run or a training alone."""
        if not isinstance(data, dict):
            return data
        defaults: dict[str, Settings] = {"run": _RUN, "train": _TRAIN}
        given = {name: data[name] for name in defaults if isinstance(data.get(name), dict)}
        return data | {name: _laid_over(defaults[name].model_dump(), value) for name, value in given.items()}

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        if "searched" in self.merges:
            raise ValueError("merges: `searched` is the name of the merge that `search` asks for")
        for field in ("seeds", "scaffolds"):
            given = getattr(self, field)
            if len(set(given)) != len(given):
                raise ValueError(f"{field}: one stands there twice")
        return self


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above`, and what it does not say from `below`; nested fields too."""
    both = {k: (below[k], above[k]) for k in above if k in below}
    nested = {k: _laid_over(b, a) for k, (b, a) in both.items() if isinstance(b, dict) and isinstance(a, dict)}
    return below | above | nested
