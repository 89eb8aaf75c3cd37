"""Verifies repaired code by calling it with hidden inputs. Runs inside the sandbox.

`params.json` is {"module": ..., "points": {name: {"calls": [...], "digest": ...}}}. The agent's code runs in a child
process per point that is told the calls but not the results: exiting early, printing, patching this module or the tests
gains nothing. A child can read this folder, so it holds no result either, only a slow digest over all results of a
point. This process is not dumpable, so a child of the same user can read neither its memory nor its descriptors, and so
cannot learn the nonce and forge the report; killing this process leaves no report. What remains possible: code that is
right for these very inputs alone, and guessing all results of a point at some hundred guesses in the time given.
"""

# As few imports as possible: this starts for every verification.
# ruff: noqa: PTH100, PTH118, PTH120, PTH123
import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import IO

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, FOLDER)
from probe import digest  # noqa: E402

# Wall time only ends code that sleeps; what computes for ever meets the CPU limit, whatever the load of the host.
POINT_S = 20.0
ALL_S = 50.0
MAX_REPORT = 1 << 18
PR_SET_DUMPABLE = 4


def _seal() -> None:
    """Take memory and descriptors of this process out of the children's reach."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _drain(pipe: IO[bytes], deadline: float) -> bytes:
    """What the pipe gives until it ends, is too much, or time is up."""
    chunks: list[bytes] = []
    size = 0
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while size <= MAX_REPORT and selector.select(max(0.0, deadline - time.monotonic())):
            chunk = os.read(pipe.fileno(), 1 << 16)
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
    return b"".join(chunks)


def _report(module: str, calls: list[object], deadline: float) -> bytes:
    """What the child reports, as bytes. Its process group is ended."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", os.path.join(FOLDER, "probe.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    if child.stdin is None or child.stdout is None:
        raise OSError("no pipes")
    try:
        child.stdin.write(json.dumps({"module": module, "calls": calls}).encode())
        child.stdin.close()
        return _drain(child.stdout, deadline)
    except BrokenPipeError:
        return b""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()


def _same(report: bytes, wanted: str) -> bool:
    try:
        return bool(digest(json.loads(report)) == wanted)
    except (ValueError, RecursionError, MemoryError):
        return False


def main() -> None:
    """Print the points as the last line."""
    _seal()
    nonce = sys.stdin.read(256).strip()
    with open(os.path.join(FOLDER, "params.json"), encoding="utf-8") as handle:
        parameters = json.load(handle)
    end = time.monotonic() + ALL_S
    points: dict[str, bool] = {}
    late = False
    for name, point in parameters["points"].items():
        # Code that hangs once has failed; the other points are not waited for.
        deadline = min(end, time.monotonic() + POINT_S)
        points[name] = False
        if not late:
            points[name] = _same(_report(parameters["module"], point["calls"], deadline), point["digest"])
            late = time.monotonic() >= deadline
    print(json.dumps({"nonce": nonce, "points": points}))


if __name__ == "__main__":
    main()
