"""Episodes into scored samples with verdicts. Pure; the score stage wraps each step in a thin transform.

Three steps, so that each needs only what it compares: `samples_of` one episode, `with_advantages` one subgroup
(grouped by `subgroup_key`), `without_duplicates` the samples of one text (grouped by `duplicate_key`).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from statistics import fmean

from pipelines.filters import KEPT, verdict_of
from pipelines.scores import lengths, reward_of, scores_of
from schemas.episode import Episode, Trajectory
from schemas.ids import content_id
from schemas.recipe import ScoreSettings
from schemas.sample import Sample
from schemas.task import Budget
from schemas.verdict import Verdict


def samples_of(episode: Episode, settings: ScoreSettings, budget: Budget | None = None) -> list[Sample]:
    """One sample per trajectory, all but its advantage and the check for duplicates. `budget` is the task's."""
    return [_sample(episode, trajectory, settings, budget) for trajectory in episode.trajectories]


def _sample(episode: Episode, trajectory: Trajectory, settings: ScoreSettings, budget: Budget | None) -> Sample:
    sample = Sample(
        sample_id=content_id("sample", episode.episode_id, trajectory.agent),
        episode_id=episode.episode_id,
        subgroup_id=episode.subgroup_id,
        task_id=episode.task_id,
        pattern_id=episode.pattern_id,
        environment=episode.environment,
        kind=episode.kind,
        policy=episode.policy,
        model=episode.model,
        scaffold=episode.scaffold,
        layout=episode.layout,
        agent=trajectory.agent,
        role=trajectory.role,
        effort=episode.effort,
        repeat=episode.provenance.repeat,
        messages=trajectory.messages,
        tools_json=trajectory.tools_json,
        turns=[turn.model_copy(update={"command_s": None}) for turn in trajectory.turns],
        trained=trained_messages(trajectory, episode.provenance.repeat),
        passed=episode.passed,
        repercussion=episode.repercussion,
        reward=reward_of(episode.passed, lengths(trajectory)[1], episode.effort, settings),
        advantage=None,
        scores=scores_of(trajectory, episode, budget),
        verdict=KEPT,
    )
    return sample.model_copy(update={"verdict": verdict_of(sample, episode, settings)})


def trained_messages(trajectory: Trajectory, repeat: int) -> list[bool]:
    """Per message: whether it is a reply of the policy that was no slip, could be read and came from no failure.

    What the subgroup shares was sampled once, so it is trained once: in repeat 0.
    """
    trained = [False] * len(trajectory.messages)
    for turn in trajectory.turns:
        good = not turn.slip and turn.parse_error is None and turn.finish_reason != "error"
        trained[turn.message] = good and (repeat == 0 or not turn.shared)
    return trained


def subgroup_key(sample: Sample) -> tuple[str, ...]:
    """Samples with this key equal are compared with each other; effort levels never are."""
    return sample.subgroup_id, sample.agent


def with_advantages(subgroup: Iterable[Sample]) -> list[Sample]:
    """The samples of one subgroup by id, each with advantage = reward - mean reward of the subgroup.

    Null where the reward is null, and for all when fewer than two have one: nothing to compare with is not zero.
    """
    samples = sorted(subgroup, key=lambda sample: sample.sample_id)
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    if len(rewards) < 2:
        return samples
    mean = fmean(rewards)
    return [s if s.reward is None else s.model_copy(update={"advantage": s.reward - mean}) for s in samples]


def duplicate_key(sample: Sample) -> str:
    """Equal for samples whose messages and tools are the same text."""
    return content_id("text", [[m.role, m.content] for m in sample.messages], sample.tools_json)


def without_duplicates(same_text: Iterable[Sample]) -> list[Sample]:
    """Samples of one text by id: of those that are kept the one with most to train on stays, the first such by id.

    The other kept ones are refused as duplicates.
    """
    samples = sorted(same_text, key=lambda sample: sample.sample_id)
    stays = max((s for s in samples if s.verdict.keep), key=lambda sample: sum(sample.trained), default=None)
    duplicate = {"verdict": Verdict(keep=False, reason="duplicate")}
    return [s.model_copy(update=duplicate) if s.verdict.keep and s is not stays else s for s in samples]


def score(
    episodes: Iterable[Episode], settings: ScoreSettings, budgets: dict[str, Budget] | None = None
) -> list[Sample]:
    """All three steps in memory, samples by id. `budgets` by task id. The order of the episodes does not matter."""
    budgets = budgets or {}
    samples = [s for episode in episodes for s in samples_of(episode, settings, budgets.get(episode.task_id))]
    compared = [s for group in _grouped(samples, subgroup_key) for s in with_advantages(group)]
    judged = [s for group in _grouped(compared, duplicate_key) for s in without_duplicates(group)]
    return sorted(judged, key=lambda sample: sample.sample_id)


def _grouped(samples: Iterable[Sample], key: Callable[[Sample], Hashable]) -> Iterable[list[Sample]]:
    groups: dict[Hashable, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[key(sample)].append(sample)
    return groups.values()
