"""A run folder with a few hand-made rows in every table, for tests of what reads one."""

import json
from pathlib import Path

from pipelines import store
from pipelines.folder import RunFolder, open_or_create
from pipelines.rejects import make_reject, write_rejects
from schemas.episode import ChatMessage, Episode, Provenance, Trajectory, Turn
from schemas.recipe import RunConfig
from schemas.session import Message, Session
from schemas.task import Action, BlueprintStep, Budget, FileSpec, Task, Verification

HOSTILE = "\x1b[31mred\x1b[0m [bold]not bold[/bold] \u202egnp.exe\x07\x9b2J"


def task(number: int) -> Task:
    done = Action(tool="submit", arguments_json='{"answer": ""}')
    return Task(
        task_id=f"task_{number}",
        environment="table_work",
        kind="table_work/sum",
        pattern_id="pattern_1",
        seed=number,
        split="train",
        wording_id="w",
        style="terse",
        instruction=f"add the column {HOSTILE}",
        workspace=[FileSpec(path="a.csv", content="1")],
        verification=Verification(files=[], command=["true"], fail_to_pass=["sum"], pass_to_pass=[]),
        blueprint=[BlueprintStep(phase="submit", thought="done", action=done)],
        answer=["42"],
        budget=Budget(turns=4, output_tokens=100, command_s=5.0, episode_s=60.0),
        slip_rate=0.0,
    )


def episode(name: str, policy: str, passed: bool | None, **changes: object) -> Episode:
    engine = policy == "engine"
    facts = {"policy": policy, "model": "smollm2" if engine else None, "scaffold": "tool_json", "layout": "solo"}
    view = Trajectory(
        agent="solo",
        role="solo",
        messages=[
            ChatMessage(role="system", content="Effort 50"),
            ChatMessage(role="user", content="do it"),
            ChatMessage(role="assistant", content="I run it"),
            ChatMessage(role="user", content=HOSTILE),
            ChatMessage(role="assistant", content="done"),
        ],
        tools_json="[]",
        turns=[
            Turn(index=0, message=2, actions=[], slip=True, failed=True, finish_reason="stop"),
            Turn(index=1, message=4, actions=[], parse_error="no call", finish_reason="length"),
        ],
    )
    fields = {
        "episode_id": f"episode_{name}",
        "subgroup_id": f"episode_{name}",
        "task_id": "task_1",
        "pattern_id": "pattern_1",
        "environment": "table_work",
        "kind": "table_work/sum",
        "split": "train",
        "effort": 50,
        "provenance": Provenance(**facts, effort=50, repeat=0, seed=7),  # type: ignore[arg-type]
        "trajectories": [view],
        "events": [],
        "stop_reason": "submitted",
        "points_json": None if passed is None else json.dumps({"sum": passed, "kept": True}),
        "passed": passed,
        "turns": 2,
        "parse_errors": 1,
        "failed_actions": 1,
        "prompt_tokens": 10 if engine else None,
        "output_tokens": 5 if engine else None,
    }
    return Episode.model_validate(fields | facts | changes)


def session(number: int) -> Session:
    return Session(
        session_id=f"session_{number}",
        partner="p",
        format="openai_chat",
        file="a.jsonl",
        position=f"line {number}",
        messages=[Message(role="user", content="hello")],
    )


def hand_made(tmp_path: Path) -> RunFolder:
    """Sessions, tasks, episodes and rejects; no patterns, samples or shards."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.jsonl").write_text("{}")
    run = open_or_create(tmp_path / "run", RunConfig(), [logs / "a.jsonl"], logs)
    store.write_table(run.path, "sessions", [session(1), session(2)], 2)
    store.write_table(run.path, "tasks", [task(1), task(2)], 2)
    episodes = [
        episode("aa1", "blueprint", True),
        episode("aa2", "blueprint", False),
        episode("ab", "blueprint", None, stop_reason="sandbox_error", error="SandboxDied: gone"),
        episode("ac", "engine", False),
        episode("ad", "engine", None, stop_reason="engine_error", error="gone"),
    ]
    store.write_table(run.path, "episodes", episodes, 2)
    write_rejects(
        run.reject_part("ingest"),
        [make_reject("ingest", "bad_json", file="a.jsonl", format="otel", line=n) for n in (1, 2)],
    )
    write_rejects(run.reject_part("patterns"), [make_reject("patterns", "too_few_sessions", subject="1")])
    write_rejects(run.reject_part("tasks"), [make_reject("tasks", "blueprint_fails", subject="task_9")])
    return run
