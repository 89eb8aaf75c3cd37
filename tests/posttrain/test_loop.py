"""The loop on a tiny random model: every arm is there, a second call does nothing, a stop costs one arm."""

import json
import shutil
from pathlib import Path

import pytest
from posttrain_parts import USAGE, write_random_model

from pipelines.folder import open_run
from pipelines.merge.methods import METHODS
from pipelines.merge.plan import plan
from pipelines.posttrain.checkpoint import read_lineage
from pipelines.posttrain.loop import Loop, run_loop
from pipelines.progress import Progress
from schemas.errors import ConfigError
from schemas.posttrain import EvaluationSettings, LoopSettings, MergeArm, RoundTwo, SearchSettings, TrainSettings
from schemas.recipe import PlaySettings, RolloutSettings, RunConfig, SandboxSettings, TaskSettings

SANDBOX = SandboxSettings(accept_process_memory_limit=True)
QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("loop") / "base")


def settings_with(base: Path, /, **changed: object) -> LoopSettings:
    plays = [PlaySettings(policy="blueprint", layouts=["solo"], efforts=[50])]
    asked = LoopSettings(
        run=RunConfig(
            tasks=TaskSettings(families=["errands"], per_family=8, eval_share=0.0),
            rollout=RolloutSettings(plays=plays),
            sandbox=SANDBOX,
        ),
        base=str(base),
        seeds=[0, 1],
        samples=4,
        train=TrainSettings(epochs=1, batch_samples=2, threads=1),
        evaluation=EvaluationSettings(sandbox=SANDBOX, max_turns=1, max_reply_tokens=32),
        test_tasks=3,
        dev_tasks=2,
        transfer_tasks=0,
        merges={"ties": MergeArm(method="ties", parameters={"density": 0.5})},
        search=SearchSettings(evaluations=2),
        round_two=RoundTwo(starts=["merge"], tasks=2, repeats=1, samples=2),
    )
    return LoopSettings.model_validate(asked.model_dump() | changed)


@pytest.fixture(scope="module")
def done(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("loop") / "out"
    run_loop(USAGE, out, settings_with(base), QUIET)
    return out


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Contents and inode of each evaluation: a file written again has another one."""
    found = sorted(p for p in (folder / "outcomes").rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_ino) for p in found}


def test_every_arm_is_in_the_table(done: Path) -> None:
    table = json.loads((done / "report.json").read_text())["tables"]["test"]
    by_arm = {arm: [r for r in table if r["arm"] == arm] for arm in {r["arm"] for r in table}}
    assert set(by_arm) == {
        "base, zero-shot", "base, 3-shot", "parent tool_json", "parent bash_minimal", "mixture, one's steps",
        "mixture, all steps", "router", "soup tool_json", "soup bash_minimal", "merge ties", "merge searched",
        "merge, best by development tasks", "parent, best by development tasks", "round 2 from merge, parent tool_json",
        "round 2 from merge, parent bash_minimal", "round 2 from merge, merge",
    }  # fmt: skip
    for arm, rows in by_arm.items():
        if not arm.startswith("round 2 from merge, parent"):
            columns = {(r["scaffold"], r["constrained"]) for r in rows}
            every = {("tool_json", False), ("tool_json", True), ("bash_minimal", False)}
            assert columns == {c for c in every if not arm.startswith("soup") or c[0] in arm}, arm
        assert {(r["tasks"], r["seeds"]) for r in rows} == {(3, 1 if arm.startswith(("base", "soup")) else 2)}, arm
    assert "svg" in (done / "report.svg").read_text() and "merge searched" in (done / "report.md").read_text()


def test_lineage_leads_from_usage_to_weights(done: Path) -> None:
    lineage = read_lineage(done / "checkpoints" / "seed-1" / "merge-ties")
    assert lineage is not None
    usage = json.loads((done / "run" / "run.json").read_text())["inputs"]
    base, *parents = lineage["parents"]
    assert len(parents) == 2
    for parent in parents:
        assert parent["lineage"]["examples"]["lineage"]["usage"] == usage
        assert parent["lineage"]["base"]["sha256"] == {file["file"]: file["sha256"] for file in base["files"]}
    assert set(lineage["gate"]["evidence"]) == {"tool_json", "bash_minimal"}
    assert list(lineage["gate"]["weights"].values()) == [file["sha256"] for file in lineage["files"]]


def test_it_goes_on_arm_by_arm(base: Path, done: Path) -> None:
    before, report = files(done), (done / "report.md").read_bytes()
    run_loop(USAGE, done, settings_with(base), QUIET)
    assert files(done) == before
    lost = Path("outcomes/test/seed-1/merge-ties--bash_minimal.jsonl")
    (done / lost).rename(done / "aside")  # its inode stays taken
    shutil.rmtree(done / "checkpoints" / "seed-1" / "merge-ties")
    run_loop(USAGE, done, settings_with(base), QUIET)
    after = files(done)
    assert {name for name in before if after[name] != before[name]} == {str(lost)}
    assert after[str(lost)][0] == before[str(lost)][0]
    assert (done / "report.md").read_bytes() == report


def test_checkpoints_may_go_once_their_outcomes_are_there(base: Path, done: Path) -> None:
    before, kept = files(done), done / "checkpoints" / "seed-0"
    kept.rename(done / "aside-0")
    run_loop(USAGE, done, settings_with(base), QUIET)
    assert files(done) == before and not kept.exists()
    (done / "aside-0").rename(kept)


def test_what_it_was_made_from_may_not_change(base: Path, done: Path) -> None:
    weights = base / "model.safetensors"
    before = weights.read_bytes()
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    try:
        with pytest.raises(ConfigError, match=r"made from others \(base\)"):
            run_loop(USAGE, done, settings_with(base), QUIET)
    finally:
        weights.write_bytes(before)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"scaffolds": ["tool_json", "nobody"]}, "scaffold 'nobody'"),
        ({"base": "nowhere"}, "model 'nowhere'"),
        ({"test_tasks": 5000}, "test_tasks: 5000 asked for"),
        ({"dev_tasks": 85}, "dev_tasks: 85 asked for, there are 84 sentences"),
        ({"transfer_tasks": 500}, "transfer_tasks: 500"),
    ],
)
def test_what_cannot_work_is_said_at_once(base: Path, tmp_path: Path, changed: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run_loop(USAGE, tmp_path / "out", settings_with(base, **changed), QUIET)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"seeds": [-1]}, {"seeds": [1, 1]}, {"seeds": []}, {"scaffolds": ["tool_json"]}, {"merges": {}},
        {"merges": {"a b": {"method": "linear"}}}, {"merges": {"searched": {"method": "linear"}}},
    ],
)  # fmt: skip
def test_settings_that_mean_nothing(changed: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(changed))):
        LoopSettings.model_validate(changed)


def test_what_run_and_train_leave_out_is_the_loops_default() -> None:
    asked = LoopSettings.model_validate({"run": {"tasks": {"per_family": 7}, "seed": 3}, "train": {"batch_samples": 2}})
    default = LoopSettings()
    assert asked.run.tasks == default.run.tasks.model_copy(update={"per_family": 7})
    assert asked.run.rollout == default.run.rollout and asked.run.seed == 3
    assert asked.train == default.train.model_copy(update={"batch_samples": 2})


def test_every_method_can_merge_the_parents(base: Path, done: Path) -> None:
    made = Loop(done, settings_with(base), open_run(done / "run"), QUIET)
    parents = [made.checkpoint(f"parent {name}", 0) for name in made.settings.scaffolds]
    for method in sorted(METHODS.keys() - {"passthrough"}):
        how = MergeArm.model_validate({"method": method, "parameters": {"t": 0.5} if method == "slerp" else {}})
        plan(made._recipe(how, parents, 0))


def test_other_settings_are_refused(base: Path, done: Path) -> None:
    with pytest.raises(ConfigError, match=r"other settings \(samples, test_tasks\)"):
        run_loop(USAGE, done, settings_with(base, samples=5, test_tasks=4), QUIET)
