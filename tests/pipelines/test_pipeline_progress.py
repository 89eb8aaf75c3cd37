"""Progress: counted by threads and by files of workers, shown as lines where there is no terminal."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipelines.progress import Bar, Progress, rate_and_eta, tick

ROOT = Path(__file__).resolve().parents[2]


def test_rate_and_eta() -> None:
    assert rate_and_eta(10, 70, 5.0, "episodes") == "2 episodes/s, ETA 0:30"
    assert rate_and_eta(10, None, 5.0, "") == "2/s"
    assert rate_and_eta(70, 70, 7.0, "files") == "10 files/s"
    assert rate_and_eta(0, 70, 7.0, "files") == ""


def test_threads_and_other_processes_count(tmp_path: Path) -> None:
    counter = tmp_path / "n"
    bar = Bar("x", 3000, "units", counter)
    threads = [
        threading.Thread(target=lambda: [(bar.advance(), tick(counter, 2)) for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    subprocess.run(
        [sys.executable, "-c", f"from pipelines.progress import tick; tick({str(counter)!r}, 5)"], cwd=ROOT, check=True
    )
    for thread in threads:
        thread.join()
    assert bar.done == 4 * 200 * 3 + 5
    assert bar.line().startswith("x: 2405/3000 units, ")


def test_what_an_earlier_run_did_is_not_in_the_rate() -> None:
    bar = Bar("x", 44, "units", None)
    bar.skip(40)
    assert bar.line() == "x: 40/44 units"
    bar.advance(4)
    assert bar.line().startswith("x: 44/44 units, ")


def test_lines_on_a_pipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    counter = tmp_path / "n"
    counter.write_bytes(b"left over")
    with Progress().stage("tasks", 3, "tasks", counter) as bar:
        tick(counter, 2)
        bar.advance()
        bar.note("one refused")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tasks: 3/3 tasks, ")
    assert "one refused" in printed.err
    assert not counter.exists()


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress().stage("rollout [bold]", 3, "episodes") as bar:
        bar.advance(3)
    assert "3/3" in capsys.readouterr().err


def test_quiet_and_errors_pass_through(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), Progress(quiet=True).stage("x"):
        raise KeyError
    assert capsys.readouterr() == ("", "")
