"""Plays every attempt twice, as root and without. An attempt is a coroutine function `test_...(scene)`.

As root it runs in this process; without root in one child that has given it up (an ordinary id, no capabilities, no
cgroups) and plays the attempts of the whole session.
"""

import inspect
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from isolation_scene import Attempt, Stage

from schemas.errors import SandboxUnsupported

PROJECT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("isolation_child.py").relative_to(PROJECT)

GIVE_UP_ROOT = """
set -e
base=$1 project=$2 packages=$3 scratch=$4 child=$5
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt # an ordinary id may not be able to read the places where these lie
cd /mnt
mkdir python project packages scratch
mount --bind "$base" python
mount --bind "$project" project
mount --bind "$packages" packages
mount --bind "$scratch" scratch
chown 65534:65534 scratch
cd project
exec setpriv --reuid 65534 --regid 65534 --clear-groups env -i PATH="$PATH" HOME=/mnt/scratch TMPDIR=/mnt/scratch \
    LD_LIBRARY_PATH=/mnt/python/lib PYTHONPATH=/mnt/project:/mnt/packages PYTHONDONTWRITEBYTECODE=1 \
    /mnt/python/bin/python3 "$child"
"""


class Child:
    """The process without root."""

    def __init__(self, scratch: Path) -> None:
        command = [sys.executable, str(CHILD)]
        if os.geteuid() == 0:
            words = [sys.base_prefix, str(PROJECT), sysconfig.get_path("purelib"), str(scratch), str(CHILD)]
            command = ["unshare", "--mount", "bash", "-c", GIVE_UP_ROOT, "give-up-root", *words]
        self.errors = scratch.with_name(f"{scratch.name}-errors")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=PROJECT,
                env={**os.environ, "PYTHONPATH": str(PROJECT)},
            )  # fmt: skip

    def ask(self, module: str, function: str, arguments: dict[str, Any]) -> dict[str, str]:
        """How an attempt went. Raises OSError when the child is gone."""
        order = json.dumps({"module": module, "function": function, "arguments": arguments})
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise BrokenPipeError(f"the child without root has ended: {self.errors.read_text()[-2000:]}")
        return json.loads(answer)

    def play(self, attempt: Attempt, arguments: dict[str, Any]) -> None:
        """As `Stage.play`, over there."""
        answer = self.ask(attempt.__module__, attempt.__name__, arguments)
        if answer["skipped"]:
            pytest.skip(answer["skipped"])
        if answer["failed"]:
            pytest.fail(answer["failed"], pytrace=False)

    def close(self) -> None:
        """Wait for it to tidy up."""
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def as_root() -> Stage:
    """Or a skip with the reason."""
    if os.geteuid() != 0:
        pytest.skip("this run is without root")
    stage = Stage("root")
    try:
        stage.runner.run(stage.scene.shared())
    except SandboxUnsupported as error:
        pytest.skip(f"no sandboxes as root here: {error}")
    return stage


def without_root(scratch: Path) -> Child:
    """Or a skip with the reason."""
    child = Child(scratch)
    try:
        answer = child.ask("", "look", {})
    except OSError as error:
        pytest.skip(f"this host cannot set the scene: {error}")
    if answer["skipped"]:
        pytest.skip(f"no sandboxes without root here: {answer['skipped']}")
    assert not answer["failed"], answer["failed"]
    return child


@pytest.fixture(scope="session", params=["root", "rootless"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage | Child]:
    """Where the attempt is played; the attempt itself is given an `isolation_scene.Scene`."""
    stage = as_root() if request.param == "root" else without_root(tmp_path_factory.mktemp("scratch"))
    yield stage
    stage.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A coroutine function is an attempt: hand it to its scene, here or in the child."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    arguments.pop("scene").play(pyfuncitem.obj, arguments)
    return True
