"""The plan of episodes: complete, capped evenly, independent of the order of tasks."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from swarm_tasks import shout_task

from agents.swarm.spec import plan_episodes
from schemas.recipe import PlaySettings, RolloutSettings, RunConfig


def tasks(n: int, evals: int = 0) -> list:
    base = shout_task()
    return [
        base.model_copy(update={"task_id": f"task_{i}", "split": "eval" if i < evals else "train"}) for i in range(n)
    ]


def config(**play) -> RunConfig:
    return RunConfig(rollout=RolloutSettings(plays=[PlaySettings(**play)]))


@given(n=st.integers(1, 9), repeats=st.integers(1, 3))
def test_every_cell_is_played_by_every_task(n: int, repeats: int) -> None:
    specs = plan_episodes(tasks(n), config(policy="engine", repeats=repeats))
    assert len(specs) == len({s.episode_id for s in specs}) == n * 12 * repeats


@given(n=st.integers(12, 30), cap=st.integers(1, 100))
def test_a_cap_cuts_all_cells_alike(n: int, cap: int) -> None:
    specs = plan_episodes(tasks(n), config(policy="engine", max_episodes=cap))
    cells = Counter((s.provenance.scaffold, s.provenance.layout, s.provenance.effort) for s in specs)
    assert sum(cells.values()) == cap
    assert max(cells.values()) - min(cells.values()) <= 1 or cap < 12


@given(st.permutations(range(8)))
def test_the_order_of_tasks_does_not_matter(order) -> None:
    some = tasks(8)
    wanted = plan_episodes(some, config(policy="engine", max_episodes=20))
    assert plan_episodes([some[i] for i in order], config(policy="engine", max_episodes=20)) == wanted


def test_the_blueprint_does_not_play_evaluation_tasks() -> None:
    specs = plan_episodes(tasks(4, evals=3), config(policy="blueprint"))
    assert {s.task_id for s in specs} == {"task_3"}
    assert plan_episodes(tasks(2, evals=2), config(policy="blueprint")) == []


def test_a_folder_of_the_machine_is_not_the_model_s_name() -> None:
    settings = RunConfig.model_validate(
        {"engine": {"model": "/home/me/models/tiny"}, "rollout": {"plays": [{"policy": "engine"}]}}
    )
    assert {s.provenance.model for s in plan_episodes(tasks(1), settings)} == {"tiny"}
