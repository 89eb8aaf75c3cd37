"""An agent finds the workspace of its task inside and nothing else: no history, no caches, no answers."""

import io
import json
import sys
import tarfile
from functools import cache
from pathlib import Path

import pytest
from isolation_scene import Scene

from agents.environments import FAMILIES
from agents.sandbox.base import Limits
from agents.swarm.verify import prepare, workspace_bytes
from schemas.task import Task

sys.path.insert(0, str(Path(__file__).parents[1] / "environments"))
from env_support import usage_pattern

PATTERNS = [("short", "office"), ("medium", "customer_support"), ("long", "software")]
LEFT_OVERS = {".git", ".hg", ".svn", "__pycache__", ".pytest_cache", ".mypy_cache", ".cache", "pip", ".local", ".npm"}
LEFT_OVERS |= {".bash_history", ".python_history", ".netrc", ".ssh", ".env", "node_modules", ".tox", ".venv"}
TELLING = 40
"""Characters from which on a line can hardly be there by chance."""


def squeezed(text: str) -> str:
    return " ".join(text.split())


def hidden_calls(params: object) -> set[str]:
    """Arguments of calls, digests and expected rows in a verifier's parameters."""
    if isinstance(params, dict):
        return set().union(*(hidden_calls(value) for value in params.values()), set())
    if isinstance(params, list) and len(json.dumps(params)) >= TELLING:
        return {json.dumps(params)}.union(*(hidden_calls(value) for value in params))
    return {params} if isinstance(params, str) and len(params) >= TELLING else set()


def secrets_of(task: Task) -> dict[str, str]:
    """What must not be found, by what it is."""
    found = {squeezed(answer): "answer" for answer in task.answer}
    for spec in task.verification.files:
        text = workspace_bytes(spec).decode("utf-8", "replace")
        found |= {squeezed(line): spec.path for line in [text, *text.splitlines()] if len(squeezed(line)) >= TELLING}
        if spec.path.endswith(".json"):
            found |= {squeezed(call): f"{spec.path}, a part" for call in hidden_calls(json.loads(text))}
    for step in task.blueprint:
        found |= {squeezed(step.thought): "thought"}
        texts = json.loads(step.action.arguments_json).values()
        found |= {squeezed(text): f"{step.phase} action" for text in texts if len(squeezed(text)) >= TELLING}
    return found


async def files_inside(scene: Scene, task: Task) -> dict[str, bytes]:
    """Every file that is not the host's system, by path, as an agent finds it at its first turn."""
    async with scene.fresh(Limits(output_bytes=32 << 20)) as box:
        await prepare(box, task)
        done = await box.run(
            "tar -cf - --ignore-failed-read --exclude=/etc/alternatives --exclude=/etc/ld.so.cache /work /tmp "
            "/dev/shm /verify /var /etc $(find /opt -maxdepth 5 -name site-packages) 2>/dev/null"
        )
    assert done.dropped_bytes == 0 and done.stdout
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        return {
            member.name: archive.extractfile(member).read() if member.isfile() else b""
            for member in archive.getmembers()
        }


@cache
def some_tasks(family: str) -> list[Task]:
    """Of four kinds."""
    found: dict[str, Task] = {}
    for seed in range(300, 340):
        task = FAMILIES[family](usage_pattern(*PATTERNS[seed % 3]), seed)
        found.setdefault(task.kind, task)
        if len(found) == 4:
            break
    return list(found.values())


@pytest.mark.parametrize("family", FAMILIES)
async def test_nothing_but_the_workspace(scene: Scene, family: str):
    tasks = some_tasks(family)
    assert len(tasks) == 4
    for task in tasks:
        files = await files_inside(scene, task)
        given = {f"work/{spec.path}": workspace_bytes(spec) for spec in task.workspace}
        below = {
            path: data for path, data in files.items() if path.startswith(("work/", "tmp/", "dev/shm/", "verify/"))
        }
        assert {path: data for path, data in below.items() if data or path in given} == given, task.kind
        assert not [path for path in files if LEFT_OVERS & set(Path(path).parts)], task.kind
        texts = {path: squeezed(data.decode("utf-8", "replace")) for path, data in files.items()}
        leaks = [
            (what, path, secret[:80])
            for secret, what in secrets_of(task).items()
            for path, text in texts.items()
            if secret in text or secret in path
        ]
        assert leaks == [], task.kind


async def test_a_search_would_find_an_answer(scene: Scene):
    """The search above can fail: each kind of secret, put into the workspace, is found."""
    task = some_tasks("code_repair")[0]
    for secret, what in list(secrets_of(task).items())[:3]:
        note = task.workspace[0].model_copy(update={"path": "note.txt", "content": f"psst\n{secret}\n"})
        files = await files_inside(scene, task.model_copy(update={"workspace": [*task.workspace, note]}))
        assert secret in squeezed(files["work/note.txt"].decode()), what


async def test_caches_of_the_host_are_not_there(scene: Scene):
    said = await scene.shell(
        "find / \\( -path /usr -o -path /proc -o -path '/opt/python/lib/python3*' \\) -prune -o "
        "\\( -name .git -o -name .pytest_cache -o -name .cache -o -name '*.whl' -o -name .netrc \\) -print;"
        "python3 -c 'import trajmill' 2>&1 | tail -1;"
        "python3 -c 'import agents' 2>&1 | tail -1; git -C / log 2>&1 | head -1 | cut -c 1-5"
    )
    assert "No module named 'trajmill'" in said and "No module named 'agents'" in said, said
    assert not [line for line in said.splitlines() if line.startswith("/")], said
