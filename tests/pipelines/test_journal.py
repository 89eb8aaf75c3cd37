"""The journal: what `append` has returned for is read again, whatever a kill did to the end of the file."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pipelines import journal
from schemas.episode import Episode, Provenance

ROOT = Path(__file__).resolve().parents[2]


def episode(number: int) -> Episode:
    return Episode(
        episode_id=f"episode_{number}", task_id="t", pattern_id="p", environment="e", kind="k", split="train",
        policy="scripted", scaffold="tool_json", layout="solo", effort=50,
        subgroup_id="episode_1",
        provenance=Provenance(policy="scripted", scaffold="tool_json", layout="solo", effort=50, repeat=0, seed=1),
        trajectories=[], events=[], stop_reason="submitted", error="a\nb \u2028",
        turns=0, parse_errors=0, failed_actions=0,
    )  # fmt: skip


def read(folder: Path) -> list[Episode]:
    return [Episode.model_validate_json(line) for path in journal.files(folder) for line in journal.read_lines(path)]


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    writer = journal.JournalWriter(tmp_path)
    for i in range(5):
        writer.append(episode(i))
    writer.close()
    assert read(tmp_path) == [episode(i) for i in range(5)]


@given(cut=st.integers(0, 2000), junk=st.binary(max_size=40))
def test_a_spoilt_tail_costs_the_tail_alone(tmp_path_factory, cut: int, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("journal")
    writer = journal.JournalWriter(folder)
    for i in range(3):
        writer.append(episode(i))
    writer.close()
    (path,) = journal.files(folder)
    data = path.read_bytes()
    keep = data[: max(len(data) - cut, 0)]
    path.write_bytes(keep + junk)
    whole = keep.count(b"\n")
    got = read(folder)
    assert got == [episode(i) for i in range(min(whole, 3))]


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, "tests/pipelines")
from test_journal import episode
from pipelines import journal
writer = journal.JournalWriter(Path(sys.argv[1]))
for i in range(100000):
    writer.append(episode(i))
    print(i, flush=True)
"""


def test_a_kill_loses_nothing_that_was_appended(tmp_path: Path) -> None:
    seen = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        end = time.monotonic() + 30
        last = -1
        while last < 20 and time.monotonic() < end:
            last = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        last = max([last, *(int(line) for line in process.stdout.read().split())])
        process.wait()
        seen += last + 1
        assert len(read(tmp_path)) >= seen
