"""SIGKILL at random moments of rewriting a table: what a reader finds next is one whole generation."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from pipelines import store
from schemas.ids import content_id
from schemas.session import Reject

ROWS, PARTS = 40, 3
WRITER = """
import sys
from pathlib import Path
from tests_store_kill import generation
from pipelines import store
run = Path(sys.argv[1])
with store.locked(run):
    number = int(sys.argv[2])
    while True:
        store.write_table(run, "rejects", generation(number), parts=3)
        print(number, flush=True)
        number += 1
"""


def generation(number: int) -> list[Reject]:
    return [Reject(reject_id=content_id("reject", i), stage="s", reason="r", line=number) for i in range(ROWS)]


def test_killed_at_any_moment_a_table_is_whole(tmp_path: Path) -> None:
    run, random_ = tmp_path / "run", random.Random(7)
    script = WRITER.replace("tests_store_kill", Path(__file__).stem)
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(Path(__file__).parent)])}
    reported = 0
    for _ in range(6):
        command = [sys.executable, "-c", script, str(run), str(reported + 1)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            reported = int(writer.stdout.readline())
            time.sleep(random_.uniform(0, 0.08))  # the random moment of the kill, not a wait for anything
            writer.send_signal(signal.SIGKILL)
            finished = writer.stdout.read().split()
        reported = int(finished[-1]) if finished else reported
        with store.locked(run):
            rows = list(store.read_records(run, "rejects", Reject))
        found = {row.line for row in rows}
        assert len(rows) == ROWS and len(found) == 1
        assert found <= {reported, reported + 1}
        reported = max(found)  # type: ignore[type-var,assignment]
        assert [path.name for path in run.iterdir()] == ["rejects"]
        assert len(list((run / "rejects").iterdir())) == PARTS
