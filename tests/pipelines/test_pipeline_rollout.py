"""How the rollout stage hands out work, and what it makes of errors."""

import json
import threading
from pathlib import Path

import apache_beam as beam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_run import episode, task

from agents.swarm.spec import plan_episodes, subgroups_of
from pipelines import journal
from pipelines.transforms.beam import run_pipeline
from pipelines.transforms.rollout import IN_A_ROW, _batches, _check_decided, _in_a_row, _Worker
from schemas.errors import EngineUnavailable, SandboxError, SandboxRefused, SandboxUnsupported
from schemas.recipe import PlaySettings, RolloutSettings, RunConfig


@given(workers=st.integers(1, 5), repeats=st.integers(1, 4), cap=st.none() | st.integers(1, 60))
def test_a_subgroup_is_played_by_one_worker(workers: int, repeats: int, cap: int | None) -> None:
    tasks = {f"task_{i}": task(i) for i in (1, 2)}
    play = PlaySettings(policy="engine", repeats=repeats, branch_after=int(repeats > 1), max_episodes=cap)
    specs = plan_episodes(list(tasks.values()), RunConfig(rollout=RolloutSettings(plays=[play])))
    batches = [json.loads(batch) for batch in _batches(specs, tasks, workers)]
    assert len(batches) == workers
    places = {spec["provenance"]["seed"]: i for i, batch in enumerate(batches) for spec in batch["specs"]}
    assert len(places) == len(specs)
    for subgroup in subgroups_of(specs):
        assert len({places[spec.provenance.seed] for spec in subgroup}) == 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [(SandboxUnsupported, (13, "making a sandbox failed at 'proc'")), (SandboxRefused, ("memory", "memory short"))],
)
def test_an_error_of_a_worker_comes_through_as_itself(kind: type[Exception], words: tuple) -> None:
    def fail(_: int) -> None:
        raise kind(*words)

    with pytest.raises(kind) as caught:
        run_pipeline(lambda pipeline: pipeline | beam.Create([1]) | beam.Map(fail), 1)
    assert str(caught.value) == str(kind(*words))


def journaled(folder: Path, *ends: tuple[str, str]) -> Path:
    """A journal of episodes with these policies and stop reasons; the error names the reason."""
    writer = journal.JournalWriter(folder)
    for i, (policy, reason) in enumerate(ends):
        writer.append(episode(str(i), policy, None, stop_reason=reason, error=f"why {reason}"))
    writer.close()
    return folder


ENGINE, SANDBOX, DONE = "engine_error", "sandbox_error", "submitted"


@pytest.mark.parametrize(
    ("ends", "kind", "said"),
    [
        ([("engine", ENGINE)] * 3, EngineUnavailable, "policy `engine`: engine_error: why engine_error$"),
        ([("engine", DONE), ("blueprint", SANDBOX)], SandboxError, "`blueprint`: sandbox_error: why sandbox_error$"),
        ([("engine", ENGINE)] * 5 + [("engine", SANDBOX)], EngineUnavailable, "why engine_error; sandbox_error: why"),
    ],
)
def test_a_policy_without_any_verdict_is_an_error(tmp_path: Path, ends: list, kind: type, said: str) -> None:
    with pytest.raises(kind, match=said):
        _check_decided(journaled(tmp_path, *ends))


def test_one_verdict_is_enough(tmp_path: Path) -> None:
    _check_decided(journaled(tmp_path, ("engine", ENGINE), ("engine", SANDBOX), ("engine", DONE)))


def test_subgroups_undecided_in_a_row_stop_the_rollout_whatever_their_repeats() -> None:
    check = _in_a_row()
    undecided = [
        episode(f"{i}{k}", "engine", None, stop_reason=ENGINE, error="asleep", subgroup_id=f"episode_{i}")
        for i in range(IN_A_ROW)
        for k in range(3)
    ]
    for made in undecided[: 3 * (IN_A_ROW - 1)]:
        check(made)
    check(episode("x", "engine", False))
    for made in undecided[: 3 * (IN_A_ROW - 1)]:
        check(made)
    with pytest.raises(EngineUnavailable, match="no verdict on 16 subgroups in a row: asleep"):
        check(undecided[-1])


def test_a_worker_ends_its_thread_also_where_its_runtime_fails_to_close() -> None:
    before = threading.active_count()
    worker = _Worker(RunConfig(), needs_engine=False)
    pool = worker.runtime.pool

    class Failing:
        async def close(self) -> None:
            await pool.close()
            raise OSError("busy")

    worker.runtime.pool = Failing()
    with pytest.raises(OSError, match="busy"):
        worker.close()
    assert threading.active_count() == before
    assert worker.loop.is_closed()
