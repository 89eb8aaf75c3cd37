"""What is measured of a trajectory, and the reward made of it. Called by `pipelines.samples`."""

import math
from collections.abc import Sequence

from schemas.episode import Episode, Trajectory
from schemas.recipe import ScoreSettings
from schemas.task import Budget
from schemas.verdict import Score


def scores_of(trajectory: Trajectory, episode: Episode, budget: Budget | None) -> list[Score]:
    """All measurements of one trajectory. `budget` is the task's; without one `budget_use` is null.

    `outcome`: 1 passed, 0 not, null undecided. `format_valid`: share of replies that the scaffold could read.
    `budget_use`: share of the turns used. `tokens`: length of the whole view; `output_tokens`: of the replies.
    """
    turns = trajectory.turns
    readable = sum(turn.parse_error is None for turn in turns)
    total, replies, counter = lengths(trajectory)
    return [
        Score(name="outcome", value=None if episode.passed is None else float(episode.passed), scorer="verifier/1"),
        Score(name="format_valid", value=readable / len(turns) if turns else None, scorer="scaffold/1"),
        Score(
            name="budget_use", value=len(turns) / budget.turns if budget and budget.turns else None, scorer="budget/1"
        ),
        Score(name="tokens", value=float(total), scorer=counter),
        Score(name="output_tokens", value=float(replies), scorer=counter),
    ]


def lengths(trajectory: Trajectory) -> tuple[int, int, str]:
    """(tokens of the view, tokens of the replies, who counted).

    Counted by the policy where it sampled tokens; else characters / 4, rounded up, and the scorer says so.
    """
    sampled = [turn for turn in trajectory.turns if turn.output_ids is not None]
    if sampled:
        replies = sum(len(turn.output_ids or ()) for turn in sampled)
        return replies + sum(len(turn.prompt_ids or ()) for turn in sampled), replies, "policy_tokens/1"
    texts = [message.content for message in trajectory.messages]
    written = [texts[turn.message] for turn in trajectory.turns]
    return math.ceil(sum(map(len, texts)) / 4), math.ceil(sum(map(len, written)) / 4), "characters_by_4/1"


def length_reward(
    tokens: int,
    effort: int,
    levels: Sequence[int] = (50, 75, 100),
    *,
    k0: float = 1.0,
    scale: float = 1.0,
    cap: float = 1.0,
    norm: float = 4096.0,
) -> float:
    """r_len = -min(C_max, k(b) * l / L_norm), in [-cap, 0]; k(b) = k0 * exp(-(b - b_min) / tau).

    tau = scale * mean gap between neighbouring training levels (DeepSeek-V4.1-Flash report, numeric reasoning effort,
    where `scale` is lambda). The report gives no numbers: k0 = 1, lambda = 1, C_max = 1, L_norm = 4096 tokens are
    ours. `tokens` l: tokens the agent wrote. One level alone has no gap: then k(b) = k0.
    """
    ordered = sorted(set(levels))
    if len(ordered) < 2:
        return -min(cap, k0 * tokens / norm)
    tau = scale * (ordered[-1] - ordered[0]) / (len(ordered) - 1)
    return -min(cap, k0 * math.exp(-(effort - ordered[0]) / tau) * tokens / norm)


def reward_of(passed: bool | None, output_tokens: int, effort: int, settings: ScoreSettings) -> float | None:
    """The verified outcome, plus the weighted length part when its weight is not 0; null when undecided."""
    if passed is None:
        return None
    outcome = float(passed)
    if settings.length_weight == 0:
        return outcome
    return outcome + settings.length_weight * length_reward(output_tokens, effort, settings.effort_levels)
