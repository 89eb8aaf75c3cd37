"""Everything that happened in one run of one task, in order, for all agents."""

from datetime import datetime
from typing import Literal

from schemas.record import Count, Effort, Float32, Int32, Record
from schemas.task import Action

StopReason = Literal[
    "submitted", "turn_budget", "token_budget", "time_budget", "context_full", "stalled", "engine_error",
    "sandbox_error", "sandbox_crashed", "sandbox_expired",
]  # fmt: skip
Layout = Literal["solo", "team"]
Repercussion = Literal["sandbox_crashed"]
"""What an agent broke beyond its task."""


class Event(Record):
    """One thing that happened."""

    seq: Count
    """Order inside the episode."""
    agent: str
    """Who did it, or whom it happened to; `episode` for the episode itself."""
    kind: Literal["start", "reply", "action", "result", "mail", "wait", "wake", "submit", "verify", "stop"]
    """What it is."""
    turn: Count | None = None
    """Turn of that agent it belongs to."""
    detail_json: str
    """The rest, as a JSON object."""


class ChatMessage(Record):
    """One message of an agent's view, as text."""

    role: Literal["system", "user", "assistant"]
    """Observations are `user`: the scaffold writes tool results as text."""
    content: str
    """Exactly what the template wrote or the policy replied."""


class Turn(Record):
    """One sampled reply and its executed actions."""

    index: Count
    """Order in the trajectory."""
    message: Count
    """Index of the reply in `Trajectory.messages`."""
    actions: list[Action]
    """What the scaffold read in it; empty when it read nothing."""
    parse_error: str | None = None
    """Why the scaffold could not read it."""
    slip: bool = False
    """A deliberate mistake of the blueprint policy: in the context, never trained on."""
    failed: bool = False
    """Whether an executed action ended in an error."""
    shared: bool = False
    """Played once for all repeats of its subgroup, before they branched, so equal in each of their records. Not where a
    policy is not deterministic: repeats that were lost, or that a later run played, then have shared turns of their
    own, and an advantage compares different ones."""
    finish_reason: Literal["stop", "length", "error"]
    """Why the reply ended."""
    prompt_ids: list[Int32] | None = None
    """Token ids added to the context since the previous reply; null when the policy does not sample tokens."""
    output_ids: list[Int32] | None = None
    """Token ids really sampled, end-of-turn token included when it was sampled."""
    logprobs: list[Float32] | None = None
    """Log probability of each output id, of the distribution sampled from (natural log)."""
    policy_version: str | None = None
    """Weights that sampled the tokens."""
    routed_experts: list[list[Int32]] | None = None
    """Experts chosen per token, for mixture-of-experts policies; null for dense ones."""
    command_s: float | None = None
    """Wall time of the actions, seconds. A clock value: kept out of ids and shards."""


class Trajectory(Record):
    """One agent's ordered record in an episode."""

    agent: str
    """Name in the episode: `solo`, or `lead`, `teammate_1`, `teammate_2`, `reviewer`."""
    role: str
    """Role that it plays."""
    messages: list[ChatMessage]
    """Its whole view."""
    tools_json: str
    """Tools offered, as a JSON list of function schemas; "[]" when the scaffold has none."""
    turns: list[Turn]
    """Its replies."""


class Provenance(Record):
    """What produced an episode."""

    policy: Literal["engine", "blueprint", "scripted"]
    """Blueprint means synthetic: reference actions replayed, no model chose them."""
    model: str | None = None
    """Model name; null when no model chose anything."""
    scaffold: str
    """How tools and turns were written as text."""
    layout: Layout
    """One agent, or a team."""
    effort: Effort
    """Reasoning effort b that the prompt states."""
    repeat: Count
    """Number of the rollout among those with equal task, policy, scaffold, layout and effort."""
    seed: Count
    """Derived from the run's seed and all of the above."""
    branch_after: Count = 0
    """Rounds that the subgroup played once, with the seed of repeat 0, before its repeats branched."""


class Episode(Record):
    """One run of one task."""

    episode_id: str
    """Content id of task and provenance, known before it runs."""
    subgroup_id: str
    """The `episode_id` of repeat 0: equal for episodes that differ in nothing but repeat and seed."""
    task_id: str
    """Task that was run."""
    pattern_id: str
    """Pattern behind the task."""
    environment: str
    """Family of the task."""
    kind: str
    """Kind of the task."""
    split: Literal["train", "eval"]
    """Split of the task."""
    policy: str
    """From the provenance; columns of their own so that SQL stays short."""
    model: str | None = None
    """From the provenance."""
    scaffold: str
    """From the provenance."""
    layout: Layout
    """From the provenance."""
    effort: Effort
    """From the provenance."""
    provenance: Provenance
    """What produced it."""
    trajectories: list[Trajectory]
    """One per agent that took a turn, the lead first."""
    events: list[Event]
    """In order."""
    stop_reason: StopReason
    """Why it ended. `sandbox_error`: the infrastructure's doing; `sandbox_crashed`, `sandbox_expired`: the agent's."""
    repercussion: Repercussion | None = None
    """What the agent broke; null when nothing. A failure of another kind than an unsolved task: filter on it."""
    error: str | None = None
    """Message of an engine or sandbox failure."""
    points_json: str | None = None
    """Verification points as a JSON object {name: bool}; null when verification did not run."""
    passed: bool | None = None
    """Whether every point holds, false where the agent lost its sandbox; null when an infrastructure error left it
    undecided."""
    turns: Count
    """Replies of all agents."""
    parse_errors: Count
    """Replies that the scaffold could not read."""
    failed_actions: Count
    """Actions that ended in an error."""
    prompt_tokens: Count | None = None
    """Context tokens given to the policy, each once, shared turns included; null when it counts none."""
    output_tokens: Count | None = None
    """Sampled tokens, shared turns included in each repeat's; null when the policy samples none."""
    attempts: Count = 1
    """Times it was begun: above 1 where the infrastructure lost a sandbox. Beginning again for want of room for a fork
    does not count. As the clock, kept out of ids and shards."""
    started_at: datetime | None = None
    """Clock time. Kept out of ids and shards."""
    wall_s: float | None = None
    """Clock duration, seconds, shared turns included in each repeat's. Kept out of ids and shards."""
