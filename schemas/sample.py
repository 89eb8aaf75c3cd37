"""The training view of one trajectory, and the two shapes in which shards hold it."""

from schemas.episode import ChatMessage, Layout, Repercussion, Turn
from schemas.record import Count, Effort, Float32, Int32, Record
from schemas.verdict import Score, Verdict


class Sample(Record):
    """One agent's view with its scores and verdict. Kept and rejected ones stand in one table."""

    sample_id: str
    """Content id of episode and agent."""
    episode_id: str
    """Episode it comes from."""
    subgroup_id: str
    """Equal for samples of episodes that differ in nothing but repeat and seed."""
    task_id: str
    """Task that was run."""
    pattern_id: str
    """Pattern behind the task: lineage to usage."""
    environment: str
    """Family of the task."""
    kind: str
    """Kind of the task."""
    policy: str
    """`blueprint` says synthetic: reference actions, no model chose them."""
    model: str | None = None
    """Model that sampled it; null for none."""
    scaffold: str
    """How tools and turns are written as text."""
    layout: Layout
    """One agent, or a team."""
    agent: str
    """Whose view it is."""
    role: str
    """Role that the agent plays."""
    effort: Effort
    """Reasoning effort that the prompt states."""
    repeat: Count
    """Number of the rollout in its subgroup."""
    messages: list[ChatMessage]
    """The view as text."""
    tools_json: str
    """Tools offered, as a JSON list."""
    turns: list[Turn]
    """Replies, with token ids where the policy sampled tokens; `command_s` is null here."""
    trained: list[bool]
    """Per message: whether the loss covers it (a policy's reply that is no slip). Replies that a subgroup shares are
    trained once: in repeat 0's sample; in the others they are context."""
    passed: bool | None
    """Verified outcome; null when undecided."""
    repercussion: Repercussion | None = None
    """What the agent broke; null when nothing."""
    reward: float | None
    """What counts for training; null when undecided."""
    advantage: float | None
    """Reward minus the subgroup's mean; null when unassigned (fewer than two in the subgroup)."""
    scores: list[Score]
    """All measurements."""
    verdict: Verdict
    """Keep or reject."""


class TextRow(Record):
    """A row of the `text` shards."""

    sample_id: str
    """Joins the two configurations."""
    messages: list[ChatMessage]
    """Conversation, as trainers expect it."""
    tools: str
    """Tools offered, as a JSON list."""
    message_mask: list[bool]
    """Per message: whether to train on it. Replies that a subgroup shares are true in repeat 0's row alone."""
    environment: str
    """Family of the task."""
    kind: str
    """Kind of the task."""
    scaffold: str
    """How tools and turns are written as text."""
    layout: Layout
    """One agent, or a team."""
    agent: str
    """Whose view it is."""
    role: str
    """Role of the agent."""
    effort: Effort
    """Reasoning effort that the prompt states."""
    subgroup_id: str
    """Equal for rows of episodes that differ in nothing but repeat and seed; with `agent`, those that are compared."""
    repeat: Count
    """Number of the rollout in its subgroup."""
    policy: str
    """`blueprint` says synthetic."""
    model: str | None
    """Model that sampled it; null for none."""
    passed: bool | None
    """Verified outcome."""
    repercussion: Repercussion | None = None
    """What the agent broke; null when nothing."""
    reward: float | None
    """What counts for training."""
    advantage: float | None
    """Null when unassigned."""
    episode_id: str
    """Lineage: the episode."""
    task_id: str
    """Lineage: the task."""
    pattern_id: str
    """Lineage: the usage pattern."""


class TokenRow(Record):
    """A row of the `tokens` shards."""

    sample_id: str
    """Joins the two configurations."""
    input_ids: list[Int32]
    """The conversation in the student's tokenizer; the ids really seen and sampled, for engine samples."""
    loss_mask: list[bool]
    """Per token: whether the loss covers it. Replies that a subgroup shares are true in repeat 0's row alone."""
    logprobs: list[Float32 | None]
    """Per token: behaviour log probability (natural log); null where none was sampled."""
    policy_version: str | None
    """Weights that sampled the tokens; null when none did."""
    agent: str
    """Whose view it is."""
    effort: Effort
    """Reasoning effort that the prompt states."""
    subgroup_id: str
    """Equal for rows of episodes that differ in nothing but repeat and seed; with `agent`, those that are compared."""
    repeat: Count
    """Number of the rollout in its subgroup."""
    repercussion: Repercussion | None = None
    """What the agent broke; null when nothing."""
    reward: float | None
    """What counts for training."""
    advantage: float | None
    """Null when unassigned."""
