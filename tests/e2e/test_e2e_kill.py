"""Killed three times with SIGKILL and started again: the same tasks, the same shards, no episode redone or lost."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

from small_run import LOGS, ROOT, SMALL, command, trajmill

from pipelines import journal


def finished_episodes(run: Path) -> list[str]:
    return [
        json.loads(line)["episode_id"]
        for path in sorted((run / "journal").rglob("*.log"))
        for line in journal.read_lines(path)
    ]


def kill_when(process: subprocess.Popen, condition, seconds: float = 120) -> bool:
    """SIGKILL the process once the condition holds; False when it ended before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            return False
        if condition():
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.02)
    raise AssertionError("the condition never came")


def content(run: Path, pattern: str) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.glob(pattern))}


def test_three_kills_change_nothing(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    trajmill("run", str(LOGS), "--out", str(whole), "--config", str(config))

    rng = random.Random(1)
    again = command("run", str(LOGS), "--out", str(killed), "--config", str(config))
    n = len(finished_episodes(whole))
    targets = sorted(rng.sample(range(1, n), 2))
    conditions = [(killed / "stages" / "patterns.done.json").exists]
    conditions += [lambda t=t: len(finished_episodes(killed)) >= t for t in targets]
    kills = 0
    for condition in conditions:
        with subprocess.Popen(again, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            kills += kill_when(process, condition)
    assert kills == 3
    before = finished_episodes(killed)
    trajmill("run", str(LOGS), "--out", str(killed), "--config", str(config))

    counts = Counter(finished_episodes(killed))
    assert set(before) <= set(counts)
    assert set(counts.values()) == {1}
    assert set(counts) == set(finished_episodes(whole))
    assert content(whole, "tasks/*.parquet") == content(killed, "tasks/*.parquet")
    assert content(whole, "patterns/*.parquet") == content(killed, "patterns/*.parquet")
    shards = content(whole, "shards/**/*.*")
    assert shards == content(killed, "shards/**/*.*")
    assert any(name.endswith(".parquet") for name in shards)
