"""Evaluation: what is tried, in which order it comes back, what is refused, and demonstrations in their place."""

import asyncio
from pathlib import Path

import pytest
from posttrain_parts import PATTERN, training, write_random_model

from agents.engine.base import ChatTurn, GenerateRequest, Sampling
from agents.engine.fake import FakeEngine
from agents.engine.tokenizer import load_tokenizer
from agents.environments import errands
from pipelines import store
from pipelines.posttrain.evaluate import (
    Setting,
    Trial,
    WithShots,
    evaluate,
    evaluate_run,
    settings_of,
    spread_wordings,
)
from pipelines.posttrain.outcomes import grid_of
from schemas.errors import ConfigError
from schemas.posttrain import EvaluationSettings
from schemas.recipe import SandboxSettings

TASKS = errands.heldout(3, "dev", 0, PATTERN)
QUICK = EvaluationSettings(
    sandbox=SandboxSettings(accept_process_memory_limit=True),
    max_turns=1,
    max_reply_tokens=32,
    repeats=2,
    temperature=1,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("evaluate") / "model")


def test_one_outcome_per_task_and_repeat(model: Path) -> None:
    trials = [Trial(TASKS, Setting("tool_json", constrained=True)), Trial(TASKS[:2], Setting("bash_minimal"))]
    first, second = evaluate(model, trials, QUICK, arm="random", seed=7)
    assert grid_of(first).tasks == sorted(task.task_id for task in TASKS) and grid_of(first).repeats == 2
    assert {(o.arm, o.seed, o.scaffold, o.constrained) for o in first} == {("random", 7, "tool_json", True)}
    assert {o.wording_id for o in second} == {task.wording_id for task in TASKS[:2]}
    assert all(o.tokens > 0 for o in [*first, *second])
    again = next(evaluate(model, trials[:1], QUICK.model_copy(update={"concurrency": 1}), arm="random", seed=7))
    assert [(o.task_id, o.repeat, o.passed) for o in again] == [(o.task_id, o.repeat, o.passed) for o in first]


def test_what_is_no_held_out_set_is_refused(model: Path) -> None:
    free = Setting("tool_json")
    for tasks, setting, words in (
        ([*TASKS, TASKS[0]], free, "stands twice"),
        (training(2), free, "2 tasks are of the training split"),
        (TASKS, Setting("bash_minimal", constrained=True), "no schemas"),
    ):
        with pytest.raises(ConfigError, match=words):
            next(evaluate(model, [Trial(tasks, setting)], QUICK, arm="random"))


def test_greedy_repeats_are_refused() -> None:
    with pytest.raises(ValueError, match="need a temperature"):
        EvaluationSettings(repeats=2)


def test_every_scaffold_is_tried_free_and_held_to_its_schemas() -> None:
    tried = settings_of(["bash_minimal", "tool_json"])
    assert [str(s) for s in tried] == ["bash_minimal", "tool_json", "tool_json, constrained"]


def test_shots_stand_behind_the_system_message() -> None:
    engine = FakeEngine(load_tokenizer("smollm2"))
    shots = [ChatTurn("user", "do this"), ChatTurn("assistant", "done")]
    wrapped = WithShots(engine, shots)
    system, ask = ChatTurn("system", "you are"), ChatTurn("user", "and that")

    async def asked(*messages: ChatTurn) -> list[ChatTurn]:
        await wrapped.generate(GenerateRequest(messages, "c", Sampling(4)))
        return list(engine.requests[-1].messages)

    assert asyncio.run(asked(system, ask)) == [system, *shots, ask]
    assert asyncio.run(asked(ask)) == [*shots, ask]


def test_the_evaluation_tasks_of_a_run(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "found" / "outcomes.jsonl"
    store.write_table(tmp_path, "tasks", [*training(2)], 1)
    with pytest.raises(ConfigError, match="no evaluation task"):
        next(evaluate_run(str(model), tmp_path, ["bash_minimal"], QUICK, out))
    store.write_table(tmp_path, "tasks", [*training(2), *TASKS], 1)
    (line,) = evaluate_run(str(model), tmp_path, ["bash_minimal"], QUICK, out, limit=2)
    assert line.startswith("bash_minimal: 0% of 2 tasks [0%, ") and "pass@2 0%" in line
    assert len(out.read_text().splitlines()) == 4
    with pytest.raises(ConfigError, match="exists"):
        next(evaluate_run(str(model), tmp_path, ["bash_minimal"], QUICK, out))


def test_no_wording_comes_again_before_all_have_come() -> None:
    twice = [task.model_copy(update={"task_id": f"{task.task_id}-{i}"}) for task in TASKS for i in range(2)]
    spread = spread_wordings(reversed(twice))
    assert len({task.wording_id for task in spread[: len(TASKS)]}) == len(TASKS)
    assert spread == spread_wordings(twice) and sorted(t.task_id for t in spread) == sorted(t.task_id for t in twice)
