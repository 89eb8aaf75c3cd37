"""Scores, rewards, advantages and verdicts of samples."""

import math
import random

import pytest
from episode_factory import episode, trajectory

from pipelines.samples import samples_of, score, with_advantages, without_duplicates
from pipelines.scores import length_reward
from schemas.episode import Episode
from schemas.recipe import ScoreSettings
from schemas.task import Budget

SETTINGS = ScoreSettings()
BUDGET = Budget(turns=12, output_tokens=100, command_s=1, episode_s=1)


def reason(made: Episode, settings: ScoreSettings = SETTINGS) -> str:
    (sample,) = samples_of(made, settings)
    assert sample.verdict.keep == (sample.verdict.reason == "kept")
    return sample.verdict.reason


def test_only_own_readable_replies_are_trained() -> None:
    view = trajectory(1, turns=5, slip=[1], parse_error=[2], error=[3])
    (sample,) = samples_of(episode(1, views=[view]), SETTINGS)
    trained = [m.content for m, mask in zip(sample.messages, sample.trained, strict=True) if mask]
    assert trained == [view.messages[view.turns[i].message].content for i in (0, 4)]
    assert all(turn.command_s is None for turn in sample.turns)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (episode(1), "kept"),
        (episode(1, split="eval"), "eval_split"),
        (episode(1, split="eval", passed=None), "eval_split"),
        (episode(1, passed=None), "undecided"),
        (episode(1, passed=False), "not_passed"),
        (episode(1, views=[trajectory(1, turns=0)]), "no_reply"),
        (episode(1, views=[trajectory(1, turns=4, parse_error=[0, 1, 2])]), "format_invalid"),
        (episode(1, views=[trajectory(1, turns=4, parse_error=[0, 1])]), "kept"),
        (episode(1, views=[trajectory(1, turns=2, slip=[0, 1])]), "nothing_trained"),
        (episode(1, views=[trajectory("x" * 40_000)]), "too_long"),
    ],
)
def test_the_first_filter_that_refuses_gives_the_reason(made: Episode, expected: str) -> None:
    assert reason(made) == expected


def test_failed_episodes_are_kept_when_passing_is_not_asked() -> None:
    assert reason(episode(1, passed=False), ScoreSettings(require_pass=False)) == "kept"


def test_an_output_without_tokens_trains_nothing() -> None:
    view = trajectory(1, turns=1, sampled=True)
    empty = view.model_copy(update={"turns": [view.turns[0].model_copy(update={"output_ids": [], "logprobs": []})]})
    assert reason(episode(1, policy="engine", views=[empty])) == "nothing_trained"


def test_scores_say_who_measured_and_absent_is_null() -> None:
    (sample,) = samples_of(episode(1), SETTINGS, BUDGET)
    scores = {s.name: (s.value, s.scorer) for s in sample.scores}
    characters = sum(len(m.content) for m in sample.messages)
    assert scores["outcome"] == (1.0, "verifier/1")
    assert scores["budget_use"] == (0.25, "budget/1")
    assert scores["tokens"] == (math.ceil(characters / 4), "characters_by_4/1")
    (sampled,) = samples_of(episode(1, policy="engine", passed=None), SETTINGS)
    scores = {s.name: (s.value, s.scorer) for s in sampled.scores}
    ids = sum(len(t.prompt_ids or ()) + len(t.output_ids or ()) for t in sampled.turns)
    assert scores["tokens"] == (ids, "policy_tokens/1")
    assert scores["outcome"][0] is None and scores["budget_use"][0] is None and sampled.reward is None


def test_the_team_shares_the_outcome() -> None:
    views = [trajectory(i, agent=name) for i, name in enumerate(["lead", "teammate_1", "reviewer"])]
    samples = samples_of(episode(1, views=views), SETTINGS)
    assert [s.reward for s in samples] == [1.0, 1.0, 1.0]
    assert len({s.sample_id for s in samples}) == 3


def test_length_reward_is_the_formula_of_the_report() -> None:
    assert length_reward(1024, 50) == -0.25
    assert length_reward(1024, 75) == pytest.approx(-0.25 * math.exp(-1))
    assert length_reward(1024, 100) == pytest.approx(-0.25 * math.exp(-2))
    assert length_reward(10**6, 50) == -1.0
    assert length_reward(1024, 60, [60]) == -0.25
    assert length_reward(100, 30, [10, 30, 90], k0=2, scale=0.5, norm=50) == pytest.approx(
        -1.0 * min(1, 4 * math.exp(-1))
    )


def test_the_length_part_counts_only_with_a_weight() -> None:
    (plain,) = samples_of(episode(1, policy="engine"), SETTINGS)
    (weighted,) = samples_of(episode(1, policy="engine"), ScoreSettings(length_weight=0.5))
    tokens = sum(len(t.output_ids or ()) for t in plain.turns)
    assert plain.reward == 1.0
    assert weighted.reward == pytest.approx(1.0 - 0.5 * tokens / 4096)
    (low,) = samples_of(episode(1, policy="engine"), ScoreSettings(length_weight=0.5, effort_levels=[25, 50]))
    assert low.reward == pytest.approx(1.0 - 0.5 * math.exp(-1) * tokens / 4096)


def test_advantages_compare_one_subgroup_only() -> None:
    group = [episode(i, passed=p, repeat=i, policy="engine") for i, p in enumerate([True, False, False, None])]
    alone = [episode(9, effort=75, policy="engine"), episode(9, task_id="task_2", policy="engine")]
    samples = {s.episode_id: s for s in score([*group, *alone], SETTINGS)}
    assert [samples[e.episode_id].advantage for e in group] == [
        pytest.approx(2 / 3),
        pytest.approx(-1 / 3),
        pytest.approx(-1 / 3),
        None,
    ]
    assert [samples[e.episode_id].advantage for e in alone] == [None, None]
    assert [s.advantage for s in with_advantages(samples_of(group[0], SETTINGS))] == [None]


def test_of_equal_texts_the_smallest_id_stays() -> None:
    twins = [episode("same", repeat=i) for i in range(4)] + [episode("same", repeat=7, passed=False)]
    samples = [s for e in twins for s in samples_of(e, SETTINGS)]
    judged = without_duplicates(samples)
    kept = [s.sample_id for s in judged if s.verdict.keep]
    assert kept == [min(s.sample_id for s in samples if s.passed)]
    assert sorted(s.verdict.reason for s in judged) == ["duplicate"] * 3 + ["kept", "not_passed"]


def test_of_equal_texts_the_one_with_most_to_train_on_stays() -> None:
    view = trajectory("same")
    turns = [t.model_copy(update={"shared": t.index == 0}) for t in view.turns]
    twins = [episode("same", repeat=i, views=[view.model_copy(update={"turns": turns})]) for i in range(6)]
    (kept,) = (s for s in score(twins, SETTINGS) if s.verdict.keep)
    assert kept.repeat == 0
    assert min(twins, key=lambda e: samples_of(e, SETTINGS)[0].sample_id).provenance.repeat != 0


def test_order_of_episodes_does_not_matter() -> None:
    episodes = [episode(i // 2, repeat=i, passed=i % 3 != 0) for i in range(12)]
    expected = score(episodes, SETTINGS, {"task_1": BUDGET})
    for seed in range(3):
        assert score(random.Random(seed).sample(episodes, 12), SETTINGS, {"task_1": BUDGET}) == expected
