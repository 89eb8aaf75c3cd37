"""The score and shards stages give what their pure functions give, for any number of workers."""

from pathlib import Path

import pytest
from pipeline_run import episode, hand_made, task

from agents.engine.tokenizer import load_tokenizer
from pipelines import samples, shards, store
from pipelines.folder import RunFolder, config_hash
from pipelines.progress import Progress
from pipelines.transforms.score import run_score
from pipelines.transforms.shards import run_shards
from schemas.episode import ChatMessage, Episode, Provenance
from schemas.recipe import RunConfig, ScoreSettings
from schemas.sample import Sample
from schemas.session import Reject
from schemas.task import Task

QUIET = Progress(quiet=True)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = hand_made(tmp_path)
    made = []
    for number in range(12):
        base = episode(f"s{number:02}", "blueprint", number % 3 != 0)
        origin = Provenance(**base.provenance.model_dump() | {"repeat": number})
        view = base.trajectories[0]
        good = view.turns[1].model_copy(update={"parse_error": None, "finish_reason": "stop"})
        said = ChatMessage(role="assistant", content=f"done {number // 4}")
        view = view.model_copy(update={"turns": [view.turns[0], good], "messages": [*view.messages[:4], said]})
        changes = {
            "provenance": origin,
            "task_id": f"task_{1 + number % 2}",
            "subgroup_id": f"episode_of_{1 + number % 2}",
            "trajectories": [view],
        }
        made.append(base.model_copy(update=changes))
    store.write_table(run.path, "episodes", made, 3)
    return run


def test_score_equals_the_pure_function(run: RunFolder) -> None:
    config = RunConfig(workers=2, parts=3, score=ScoreSettings(require_pass=True, max_parse_error_share=1))
    run_score(run, config, QUIET)
    budgets = {t.task_id: t.budget for t in store.read_records(run.path, "tasks", Task)}
    assert budgets.keys() == {task(1).task_id, task(2).task_id}
    expected = samples.score(store.read_records(run.path, "episodes", Episode), config.score, budgets)
    found = list(store.read_records(run.path, "samples", Sample))
    assert sorted(found, key=lambda s: s.sample_id) == expected
    assert {s.verdict.reason for s in found} == {"kept", "duplicate", "not_passed"}
    assert any(s.advantage for s in found)
    refused = [r for r in store.read_records(run.path, "rejects", Reject) if r.stage == "score"]
    assert {r.subject: r.reason for r in refused} == {
        s.sample_id: s.verdict.reason for s in found if not s.verdict.keep
    }
    assert {r.stage for r in store.read_records(run.path, "rejects", Reject)} == {
        "ingest",
        "patterns",
        "tasks",
        "score",
    }


def test_a_rerun_replaces_its_own_rejects(run: RunFolder) -> None:
    run_score(run, RunConfig(), QUIET)
    run_score(run, RunConfig(score=ScoreSettings(require_pass=False, max_parse_error_share=1)), QUIET)
    reasons = [r.reason for r in store.read_records(run.path, "rejects", Reject) if r.stage == "score"]
    assert set(reasons) == {"duplicate"}
    assert len(reasons) == 9


def test_shards_equal_the_pure_function_for_any_workers(run: RunFolder) -> None:
    config = RunConfig(score=ScoreSettings(require_pass=False, max_parse_error_share=1))
    run_score(run, config, QUIET)
    facts = shards.ShardFacts(config.seed, config_hash(config), "smollm2")
    shards.write_shards(run.path, load_tokenizer("smollm2"), config.shards, facts)
    expected = files(run.shards)
    assert {name.partition("/")[0] for name in expected} == {"text", "tokens", "manifest.json", "README.md"}
    for workers in (1, 3):
        run_shards(run, config.model_copy(update={"workers": workers}), QUIET)
        assert files(run.shards) == expected
