"""A small configuration of the whole line, and the command line in a process of its own, for the end-to-end tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "data" / "usage"

SMALL = """
seed: 5
tasks: {per_family: 2}
sandbox: {accept_process_memory_limit: true}
rollout:
  plays:
    - {policy: blueprint, efforts: [50, 100]}
    - {policy: scripted, efforts: [50]}
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pipelines.cli", *words]


def trajmill(*words: str, check: bool = True) -> subprocess.CompletedProcess:
    """Run a command to its end; its output is in the failure when there is one."""
    env = os.environ | {"COLUMNS": "160"}
    done = subprocess.run(command(*words), cwd=ROOT, capture_output=True, text=True, timeout=220, env=env, check=False)
    if check and done.returncode != 0:
        raise AssertionError(
            f"trajmill {' '.join(words)}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    return done


def sql(run: Path, query: str) -> list[dict]:
    lines = trajmill("sql", str(run), query, "--format", "json").stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
