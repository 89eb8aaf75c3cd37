"""How the rollout stage hands out work, and what it makes of errors."""

import json

import apache_beam as beam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_run import task

from agents.swarm.spec import groups_of, plan_episodes
from pipelines.transforms.beam import run_pipeline
from pipelines.transforms.rollout import _batches
from schemas.errors import SandboxRefused, SandboxUnsupported
from schemas.recipe import PlaySettings, RolloutSettings, RunConfig


@given(workers=st.integers(1, 5), repeats=st.integers(1, 4), cap=st.none() | st.integers(1, 60))
def test_a_group_is_played_by_one_worker(workers: int, repeats: int, cap: int | None) -> None:
    tasks = {f"task_{i}": task(i) for i in (1, 2)}
    play = PlaySettings(policy="engine", repeats=repeats, branch_after=1, max_episodes=cap)
    specs = plan_episodes(list(tasks.values()), RunConfig(rollout=RolloutSettings(plays=[play])))
    batches = [json.loads(batch) for batch in _batches(specs, tasks, workers)]
    assert len(batches) == workers
    places = {spec["provenance"]["seed"]: i for i, batch in enumerate(batches) for spec in batch["specs"]}
    assert len(places) == len(specs)
    for group in groups_of(specs):
        assert len({places[spec.provenance.seed] for spec in group}) == 1


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
