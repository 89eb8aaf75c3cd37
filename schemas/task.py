"""A task: problem + environment + verification, with the reference actions that prove it can be solved."""

from typing import Literal

from schemas.record import Count, Effort, Record


class FileSpec(Record):
    """One file of a workspace or of a verification."""

    path: str
    """Relative POSIX path, no `..`."""
    content: str
    """Text, base64 or an SQL script, by `encoding`."""
    encoding: Literal["utf8", "base64", "sql"] = "utf8"
    """`sql`: the file is an SQLite database built by running the script."""
    executable: bool = False
    """Whether the file gets mode 0755 instead of 0644."""


class Action(Record):
    """One thing an agent does, in the product's own tool vocabulary; a scaffold writes it as text."""

    tool: str
    """bash(command), read_file(path), write_file(path, content), submit(answer), send_message(to, text) or wait()."""
    arguments_json: str
    """Arguments as a JSON object."""


class BlueprintStep(Record):
    """One reference action with the thought that leads to it."""

    phase: Literal["explore", "work", "check", "submit"]
    """Decides which team member plays it: explore and work by teammates, check by the reviewer, submit by the lead."""
    thought: str
    """Why, in the agent's voice (rendered from a template)."""
    action: Action
    """What."""
    min_effort: Effort = 1
    """Played only at this reasoning effort or above: more effort means more checking."""


class Verification(Record):
    """How success is decided, by running. Enters the sandbox only after the agent has finished."""

    files: list[FileSpec]
    """Put under /verify."""
    command: list[str]
    """Run with cwd /work; the nonce is its standard input. Its last output line is JSON
    {"nonce": ..., "points": {name: bool}}; exit status and anything else are ignored."""
    fail_to_pass: list[str]
    """Points that fail on the untouched workspace and must pass after."""
    pass_to_pass: list[str]
    """Points that pass before and must still pass after."""
    timeout_s: float = 60.0
    """Wall time of the command."""


class Budget(Record):
    """What an episode may use."""

    turns: Count
    """Sampled replies of one agent."""
    output_tokens: Count
    """Sampled tokens of one agent."""
    command_s: float
    """Wall time of one command, seconds."""
    episode_s: float
    """Wall time of the whole episode, seconds."""


class Task(Record):
    """A verifiable task."""

    task_id: str
    """Content id of everything below but `split`."""
    environment: str
    """Family that built it."""
    kind: str
    """Kind inside the family, e.g. `table_work/aggregate`."""
    pattern_id: str
    """Pattern that steered it."""
    seed: Count
    """Seed it was built from."""
    split: Literal["train", "eval"]
    """Decided by the wording: a reserved share of wordings is for evaluation and never reaches a shard."""
    wording_id: str
    """Pieces and style the instruction was composed of."""
    style: Literal["terse", "vague", "formal", "context"]
    """Manner of the instruction."""
    instruction: str
    """What the user asks."""
    workspace: list[FileSpec]
    """Files under /work when the agent starts."""
    verification: Verification
    """How success is decided."""
    blueprint: list[BlueprintStep]
    """Reference actions, in order; the last one submits."""
    answer: list[str]
    """Strings that give the answer away; none may be visible to the agent."""
    budget: Budget
    """What an episode may use."""
    slip_rate: float
    """Share of reference actions before which the blueprint policy slips, from the pattern's error rate."""
