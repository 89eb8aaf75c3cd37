"""Stages on Beam: the same bytes for any number of workers, after kills at random moments, and when run alone."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.config import load_config
from pipelines.folder import OUTPUT, RunFolder, locked, open_run
from pipelines.progress import Progress
from pipelines.stages import needed, open_for, run_alone, run_stage
from pipelines.transforms.ingest import conversation_key
from schemas.errors import ConfigError, InputError, StageError
from schemas.session import Message, Session

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "data" / "usage"
FIRST = ("ingest", "patterns", "tasks")
SMALL = "tasks: {per_family: 2}\nsandbox: {accept_process_memory_limit: true}\n"

STAGES_ALONE = """
import sys
from pathlib import Path
from pipelines.config import load_config
from pipelines.folder import locked
from pipelines.progress import Progress
from pipelines.stages import needed, open_for, run_stage
logs, out, config = map(Path, sys.argv[1:4])
with locked(out):
    run = open_for(logs, out, load_config(config), Progress(quiet=True))
    for stage in sys.argv[4:]:
        if needed(run, stage):
            run_stage(run, stage, Progress(quiet=True))
"""


def process(out: Path, config: Path, *stages: str) -> subprocess.Popen:
    command = [sys.executable, "-c", STAGES_ALONE, str(LOGS), str(out), str(config), *stages]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def run_here(out: Path, config: Path, *stages: str, **overrides: object) -> RunFolder:
    with locked(out):
        run = open_for(LOGS, out, load_config(config, **overrides), Progress(quiet=True))
        for stage in stages:
            if needed(run, stage):
                run_stage(run, stage, Progress(quiet=True))
    return run


def tables(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*.parquet"))}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, config: Path) -> RunFolder:
    """The first three stages on the demo logs, once."""
    return run_here(tmp_path_factory.mktemp("finished") / "run", config, *FIRST)


@pytest.fixture
def copy(tmp_path: Path, finished: RunFolder) -> RunFolder:
    shutil.copytree(finished.path, tmp_path / "run")
    return open_run(tmp_path / "run")


def test_tables_are_there_and_nothing_else(finished: RunFolder) -> None:
    names = {path.name for path in finished.path.iterdir()}
    assert names == {"run.json", "sessions", "patterns", "tasks", "rejects", "journal", "stages"}
    assert {p.name for p in finished.stages.iterdir()} == {f"{stage}.done.json" for stage in FIRST}
    assert finished.table("sessions").stat().st_mode & 0o777 == 0o700


def test_workers_do_not_show(tmp_path: Path, config: Path, finished: RunFolder) -> None:
    three = run_here(tmp_path / "run", config, *FIRST, workers=3)
    assert tables(three.path) == tables(finished.path)


def test_killed_at_random_moments(tmp_path: Path, config: Path, finished: RunFolder) -> None:
    out, rng = tmp_path / "run", random.Random(3)
    for stage in FIRST:
        with process(out, config, *FIRST) as victim:
            # Once the stage is at work, a random moment later.
            while victim.poll() is None and not (out / f".{OUTPUT[stage]}.new").exists():
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.3))
            victim.kill()
        assert victim.returncode == -signal.SIGKILL
    with process(out, config, *FIRST) as last:
        assert last.stderr is not None
        errors = last.stderr.read()
    assert last.returncode == 0, errors
    assert tables(out) == tables(finished.path)
    assert not list(out.glob(".*"))


def test_what_is_done_is_skipped_and_a_change_reruns_what_it_touches(copy: RunFolder, config: Path) -> None:
    assert [stage for stage in FIRST if needed(copy, stage)] == []
    stamps = {p: p.stat().st_mtime_ns for p in copy.path.rglob("*.parquet")}
    again = run_here(copy.path, config, *FIRST)
    assert {p: p.stat().st_mtime_ns for p in again.path.rglob("*.parquet")} == stamps
    with locked(copy.path):
        changed = open_for(LOGS, copy.path, load_config(config, patterns={"min_sessions": 6}), Progress(quiet=True))
    assert [stage for stage in FIRST if needed(changed, stage)] == ["patterns", "tasks"]


def test_a_removed_session_store_is_only_made_again_when_needed(copy: RunFolder) -> None:
    shutil.rmtree(copy.table("sessions"))
    assert not needed(copy, "ingest")
    with pytest.raises(StageError, match="sessions was removed; run `ingest` first"):
        run_alone(copy, "patterns", Progress(quiet=True))
    assert copy.is_done("tasks")
    shutil.rmtree(copy.table("patterns"))
    assert needed(copy, "ingest")


def test_one_stage_alone(copy: RunFolder) -> None:
    before = tables(copy.path)
    run_alone(copy, "patterns", Progress(quiet=True))
    assert tables(copy.path) == before
    assert copy.is_done("tasks")
    with pytest.raises(StageError, match="`rollout` before it is not done"):
        run_alone(copy, "score", Progress(quiet=True))


def test_no_pattern_is_a_clear_error(tmp_path: Path, config: Path) -> None:
    with pytest.raises(StageError, match=r"no pattern was released.*patterns\.min_sessions"):
        run_here(tmp_path / "run", config, *FIRST, patterns={"min_sessions": 1000})


def test_no_session_is_a_clear_error(tmp_path: Path, config: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.txt").write_text("hello")
    with locked(tmp_path / "run"):
        run = open_for(tmp_path / "logs", tmp_path / "run", load_config(config), Progress(quiet=True))
        run_stage(run, "ingest", Progress(quiet=True))
        with pytest.raises(StageError, match="no session could be read"):
            run_stage(run, "patterns", Progress(quiet=True))


def test_the_run_folder_is_not_read_as_logs(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="must not lie inside"):
        open_for(tmp_path, tmp_path / "runs" / "x", load_config(), Progress(quiet=True))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no files"):
        open_for(tmp_path / "empty", tmp_path / "run", load_config(), Progress(quiet=True))
    with pytest.raises(InputError, match="no such file"):
        open_for(tmp_path / "nowhere", tmp_path / "run", load_config(), Progress(quiet=True))


def test_one_conversation_of_a_partner_counts_once() -> None:
    def session(partner: str, position: str) -> str:
        said = [Message(role="user", content="hello")]
        return conversation_key(
            Session(session_id=position, partner=partner, format="f", file="x", position=position, messages=said)
        )

    assert session("a", "line 1") == session("a", "line 2")
    assert session("a", "line 1") != session("b", "line 1")


def test_command_line_errors_are_one_line(tmp_path: Path) -> None:
    def fails(*words: str) -> str:
        command = [sys.executable, "-m", "pipelines.cli", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
        assert done.returncode == 2
        assert done.stdout == ""
        return done.stderr

    assert fails("sql", str(tmp_path), "select 1") == f"trajmill: {tmp_path} is not a run folder: no run.json\n"
    assert "Traceback" in fails_debug(tmp_path)
    out = str(tmp_path / "out")
    assert fails("run", str(tmp_path / "none"), "--out", out).count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert fails("run", str(LOGS), "--out", "/proc/none/run").count("\n") == 1
    assert "No closing quotation" in fails("run", str(LOGS), "--out", out, "--beam", "'")
    assert "DaskRunner is refused" in fails("run", str(LOGS), "--out", out, "--beam", "--runner=DaskRunner")


def fails_debug(path: Path) -> str:
    command = [sys.executable, "-m", "pipelines.cli", "--debug", "sql", str(path), "select 1"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stderr


def test_sigterm_ends_with_a_word(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "pipelines.cli", "run", str(LOGS), "--out", str(out)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None and not list(out.glob(".sessions.new")):
            time.sleep(0.01)
        run.terminate()
        assert run.stderr is not None
        errors = run.stderr.read()
    assert run.returncode == 130
    assert "Start the same command again to continue." in errors
    assert "Traceback" not in errors
    assert not list(out.glob(".*"))
