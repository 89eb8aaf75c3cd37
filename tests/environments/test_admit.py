"""Admission refuses what it must, each with its reason; single actions and verifier reports are read strictly."""

import asyncio
import json

import pytest
from env_support import usage_pattern

from agents.environments import FAMILIES, file_chores, table_work
from agents.sandbox.base import Limits
from agents.sandbox.spares import OLD
from agents.swarm.actions import perform
from agents.swarm.admit import admit, structural
from agents.swarm.verify import prepare, read_points, workspace_bytes
from pipelines.config import LEAST_LIFETIME_S
from schemas.errors import InputError
from schemas.task import Action, FileSpec


@pytest.fixture(scope="module")
def task():
    tasks = (table_work.build(usage_pattern("short"), seed) for seed in range(100))
    return next(t for t in tasks if t.kind == "table_work/aggregate" and t.workspace[0].encoding == "utf8")


def reasons(sandboxes, task):
    async def run():
        async with sandboxes() as pool:
            return await admit(task, pool, Limits())

    return [reject.reason for reject in asyncio.run(run())]


def action(tool, **arguments):
    return Action(tool=tool, arguments_json=json.dumps(arguments))


def test_a_sound_task_is_admitted(sandboxes, task):
    assert reasons(sandboxes, task) == []


def test_a_task_that_shows_its_answer_is_refused(sandboxes, task):
    told = task.model_copy(update={"instruction": f"{task.instruction} It is\n {task.answer[0]}"})
    assert reasons(sandboxes, told)[0] == "answer_visible"
    note = FileSpec(path="hint.txt", content=f"psst: {task.answer[-1]}")
    assert reasons(sandboxes, task.model_copy(update={"workspace": [*task.workspace, note]})) == ["answer_visible"]


def test_a_task_that_is_solved_already_is_refused(sandboxes):
    moved = file_chores.build(usage_pattern("short"), 1)
    check = moved.verification.model_copy(
        update={"fail_to_pass": moved.verification.pass_to_pass, "pass_to_pass": moved.verification.fail_to_pass}
    )
    found = reasons(sandboxes, moved.model_copy(update={"verification": check}))
    assert found == ["passes_untouched", "broken_before"]


def test_a_blueprint_that_does_not_solve_it_is_refused(sandboxes, task):
    idle = [step for step in task.blueprint if step.phase in ("explore", "submit")]
    assert reasons(sandboxes, task.model_copy(update={"blueprint": idle})) == ["blueprint_fails"]
    broken = [idle[0].model_copy(update={"phase": "work", "action": action("bash", command="exit 3")}), *idle]
    assert reasons(sandboxes, task.model_copy(update={"blueprint": broken})) == ["blueprint_stumbles"]


def test_malformed_tasks_are_refused_without_a_sandbox(task):
    bad = FileSpec(path="../out", content="")
    cases = [
        {"workspace": [*task.workspace, bad]},
        {"workspace": [*task.workspace, task.workspace[0]]},
        {"blueprint": task.blueprint[:-1]},
        {"blueprint": []},
        {"instruction": "  "},
        {"answer": []},
        {"budget": task.budget.model_copy(update={"turns": 2})},
        {"verification": task.verification.model_copy(update={"fail_to_pass": []})},
    ]
    for case in cases:
        assert {r.reason for r in structural(task.model_copy(update=case))} == {"malformed"}, case.keys()


@pytest.mark.parametrize("length", ["short", "medium", "long"])
def test_a_task_s_time_is_over_before_that_of_its_sandbox(length):
    for build in FAMILIES.values():
        made = build(usage_pattern(length), 1, 0.0)
        assert made.budget.episode_s + made.verification.timeout_s < LEAST_LIFETIME_S * (1 - OLD)


def test_actions_in_a_sandbox(sandboxes):
    async def run(*actions):
        async with sandboxes() as pool:
            sandbox = await pool.lease(Limits(output_bytes=2000))
            return [await perform(sandbox, each, 1.0) for each in actions]

    odd = 'it\'s\n$HOME \\ "x"\nß'
    results = asyncio.run(
        run(
            action("write_file", path="a/b c.txt", content=odd),
            action("read_file", path="a/b c.txt"),
            action("read_file", path="none"),
            action("bash", command="echo out; echo err >&2; exit 3"),
            action("bash", command="echo begun; sleep 30"),
            action("bash", command="head -c 5000 /dev/zero | tr '\\0' x"),
            action("bash", command="kill -9 $$"),
            action("bash", cmd="ls"),
            action("fly"),
            Action(tool="bash", arguments_json="["),
            action("read_file", path="-n"),
            action("write_file", path="a", content="x"),
            action("bash", command="echo \ud800"),
            Action(tool="bash", arguments_json="[" * 100_000),
            action("write_file", path="/tmp/n", content="x"),
        )
    )
    texts = [result.text for result in results]
    assert texts[0] == "" and texts[1] == odd
    assert "none" in texts[2] and texts[2].endswith("[exit 1]")
    assert texts[3] == "out\nerr\n[exit 3]"
    assert texts[4] == "begun\n[timed out after 1s]"
    assert texts[5].endswith("x\n[3000 bytes dropped]")
    assert texts[6] == "[killed by signal 9]"
    assert texts[7] == "[error: bash takes the text arguments command]"
    assert texts[8] == "[error: unknown tool: fly]"
    assert [r.failed for r in results] == [False, False, True, True, True, False] + [True] * 5 + [
        True,
        True,
        True,
        False,
    ]


def test_reports_are_read_strictly():
    def report(**changes):
        return json.dumps({"nonce": "n1", "points": {"a": True, "b": False}} | changes).encode()

    good = {"a": True, "b": False}
    nothing = {"a": False, "b": False}
    assert read_points(b"noise\n" + report(), "n1", ["a", "b"]) == good
    garbled = [
        b"",
        b"\n\n",
        report() + b"\nbye",
        report(nonce="n2"),
        report(points={"a": True}),
        report(points={"a": True, "b": 1}),
        report(points={"a": True, "b": True, "c": True}),
        report(extra=1),
        b"[" * 100_000,
        b"\xff\xfe",
        b"null",
    ]
    assert all(read_points(output, "n1", ["a", "b"]) == nothing for output in garbled)


def test_file_contents_by_encoding(sandboxes):
    assert workspace_bytes(FileSpec(path="a", content="ß")) == "ß".encode()
    assert workspace_bytes(FileSpec(path="a", content="AAE=", encoding="base64")) == b"\0\1"
    database = FileSpec(path="a", content="CREATE TABLE t (x); INSERT INTO t VALUES (7);", encoding="sql")
    assert workspace_bytes(database).startswith(b"SQLite format 3\0")
    assert workspace_bytes(database) == workspace_bytes(database)
    for spec in (
        FileSpec(path="a", content="?", encoding="base64"),
        FileSpec(path="a", content="DROP nonsense;", encoding="sql"),
    ):
        with pytest.raises(InputError):
            workspace_bytes(spec)


def test_prepare_puts_every_file(sandboxes, task):
    async def run():
        async with sandboxes() as pool:
            sandbox = await pool.lease(Limits())
            await prepare(sandbox, task)
            return await sandbox.collect([spec.path for spec in task.workspace])

    assert asyncio.run(run()) == {spec.path: workspace_bytes(spec) for spec in task.workspace}
