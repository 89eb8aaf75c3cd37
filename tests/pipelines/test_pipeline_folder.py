"""The run folder: what is done, what a change makes undone, and that one process has it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines import store
from pipelines.folder import OUTPUT, STAGES, RunFolder, finishing, locked, open_or_create, open_run
from pipelines.progress import Progress
from pipelines.rejects import make_reject
from pipelines.stages import open_for
from schemas.errors import ConfigError, StageError
from schemas.recipe import PatternSettings, PlaySettings, RolloutSettings, RunConfig, SandboxSettings, ScoreSettings

ROOT = Path(__file__).resolve().parents[2]


def made(tmp_path: Path, config: RunConfig | None = None, log: str = "a log") -> RunFolder:
    logs = tmp_path / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "a.jsonl").write_text(log)
    return open_or_create(tmp_path / "run", config or RunConfig(), [logs / "a.jsonl"], logs)


def fill(run: RunFolder, stage: str, content: str = "1") -> None:
    """A stage that writes a table of one row."""
    with finishing(run, stage):
        folder = run.table(OUTPUT[stage])
        folder.mkdir(exist_ok=True)
        store.write_parquet(folder / "part-0.parquet", store.to_arrow("rejects", [make_reject(stage, content)]))
        if stage == "shards":
            (folder / "manifest.json").write_text(content)


def all_done(run: RunFolder) -> None:
    for stage in STAGES:
        fill(run, stage)


def undone(run: RunFolder) -> list[str]:
    return [stage for stage in STAGES if not run.is_done(stage)]


def test_a_finished_run_stays_finished_for_the_same_command(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert undone(run) == list(STAGES)
    all_done(run)
    assert undone(made(tmp_path)) == []
    assert undone(open_run(run.path)) == []
    assert open_run(run.path).config() == RunConfig()


def played(**changes: object) -> list[PlaySettings]:
    """The default plays, changed."""
    return [play.model_copy(update=changes) for play in RolloutSettings().plays]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"score": ScoreSettings(require_pass=False)}, ["score", "shards"]),
        ({"patterns": PatternSettings(min_sessions=7)}, ["patterns", "tasks", "rollout", "score", "shards"]),
        ({"seed": 3}, ["tasks", "rollout", "score", "shards"]),
        ({"partner_field": "who"}, list(STAGES)),
        ({"workers": 4}, []),
        ({"rollout": RolloutSettings(concurrency=3)}, []),
        ({"sandbox": SandboxSettings(max_live=9, spares=2, nodes=["http://10.0.0.7:1"], nodes_token_env="T")}, []),
        ({"sandbox": SandboxSettings(lifetime_s=9)}, ["tasks", "rollout", "score", "shards"]),
        ({"rollout": RolloutSettings(plays=played(priority="background"))}, []),
        ({"sandbox": SandboxSettings(accept_process_memory_limit=True)}, []),
        ({"rollout": RolloutSettings(plays=played(repeats=2, branch_after=1))}, ["rollout", "score", "shards"]),
    ],
)
def test_another_configuration_undoes_what_depends_on_it(tmp_path: Path, change: dict, expected: list[str]) -> None:
    all_done(made(tmp_path))
    assert undone(made(tmp_path, RunConfig(**change))) == expected


def test_a_changed_log_undoes_everything(tmp_path: Path) -> None:
    all_done(made(tmp_path))
    assert undone(made(tmp_path, log="another log")) == list(STAGES)


def test_a_rerun_with_the_same_result_undoes_nothing_after_it(tmp_path: Path) -> None:
    run = made(tmp_path)
    all_done(run)
    fill(run, "patterns")
    assert undone(run) == []
    fill(run, "patterns", "other rows")
    assert undone(run) == ["tasks", "rollout", "score", "shards"]


def test_a_stage_that_fails_is_not_done(tmp_path: Path) -> None:
    run = made(tmp_path)
    all_done(run)
    with pytest.raises(ZeroDivisionError), finishing(run, "tasks"):
        raise ZeroDivisionError
    assert undone(run) == ["tasks", "rollout", "score", "shards"]


def test_the_session_store_is_private(tmp_path: Path) -> None:
    assert made(tmp_path).table("sessions").stat().st_mode & 0o777 == 0o700


def test_a_stage_before_its_input_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="`ingest` is not done"):
        made(tmp_path).input_hash("patterns")


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="neither empty nor a run"), locked(tmp_path):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(ConfigError, match="not a run folder"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        open_run(tmp_path)


def older(run: RunFolder) -> RunFolder:
    """As an earlier version would have left it."""
    facts = run.facts()
    facts["versions"]["tables"]["episodes"] = 1
    (run.path / "run.json").write_text(json.dumps(facts))
    return run


def test_the_folder_of_another_version_is_named_so(tmp_path: Path) -> None:
    run = older(made(tmp_path))
    with pytest.raises(ConfigError, match=r"another version \(episodes 1, now 2\); `trajmill run` makes it again"):
        open_run(run.path)
    assert open_run(run.path, any_version=True) == run
    facts = run.facts()
    for versions in ({}, {"tables": 3}, "1"):
        (run.path / "run.json").write_text(json.dumps(facts | {"versions": versions}))
        with pytest.raises(ConfigError, match="episodes unknown, now 2"):
            open_run(run.path)


@pytest.mark.parametrize("words", [["summary"], ["show", "aa"], ["score"], ["sql", "select 1 as one"]])
def test_commands_on_the_folder_of_another_version(tmp_path: Path, words: list[str]) -> None:
    run = older(made(tmp_path))
    command = [sys.executable, "-m", "pipelines.cli", words[0], str(run.path), *words[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if words[0] == "sql":  # reads whatever columns there are
        assert done.returncode == 0
    else:
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "written by another version" in done.stderr


def test_a_run_over_the_folder_of_another_version_says_that_it_begins_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = older(made(tmp_path))
    open_for(tmp_path / "logs", run.path, RunConfig(), Progress())
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "(episodes 1, now 2): every stage runs again, all episodes included" in said
    open_for(tmp_path / "logs", run.path, RunConfig(), Progress())
    assert capsys.readouterr().err == ""
    assert open_run(run.path) == run


def test_one_process_has_the_folder_until_it_ends(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom pipelines.folder import locked\n"
        "with locked(Path(sys.argv[1])):\n    print('in', flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        with pytest.raises(StageError, match=f"process {other.pid}"), locked(tmp_path / "run"):
            pass
        other.kill()
        other.wait()
    with locked(tmp_path / "run"):
        pass
    assert list((tmp_path / "run").iterdir()) == []
