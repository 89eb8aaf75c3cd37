"""Plays attempts in a process without privileges: reads them as JSON lines and answers how each went.

Started by conftest.py. A line names module, function and arguments; the answer holds `failed` (a traceback or nothing)
and `skipped` (a reason or nothing).
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from isolation_scene import Stage

from schemas.errors import SandboxUnsupported


async def look(scene) -> None:
    """The first attempt of all: can this process make a sandbox?"""
    await scene.shared()


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an attempt prints must not be taken for an answer
    stage = Stage("rootless")
    for line in sys.stdin:
        order = json.loads(line)
        answer = {"failed": "", "skipped": ""}
        try:
            module = importlib.import_module(order["module"]) if order["module"] else sys.modules[__name__]
            stage.play(getattr(module, order["function"]), order["arguments"])
        except (pytest.skip.Exception, SandboxUnsupported) as reason:
            answer["skipped"] = str(reason)
        except BaseException as error:  # noqa: BLE001  (the parent decides: it raises what it is told)
            # With local variables: pytest, which would show what was compared, is not at work in here.
            told = traceback.TracebackException.from_exception(error, capture_locals=True)
            answer["failed"] = "".join(told.format())[-6000:]
        print(json.dumps(answer), file=answers, flush=True)
    stage.close()


if __name__ == "__main__":
    main()
