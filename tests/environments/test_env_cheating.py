"""Agents that do not solve the task but try to look as if they had."""

import asyncio

import pytest
from env_support import usage_pattern

from agents.environments import code_repair, file_chores, table_work
from agents.sandbox.base import Limits
from agents.swarm.verify import prepare, verify

NONCE = "5f1d77c0a3"


def first_of(build, kind, accept=lambda task: True):
    tasks = (build(usage_pattern("short"), seed) for seed in range(200))
    return next(task for task in tasks if task.kind == kind and accept(task))


def points_after(sandboxes, task, commands):
    """Points after each command, every one in a sandbox of its own."""

    async def one(command):
        async with sandboxes() as pool:
            sandbox = await pool.lease(Limits())
            await prepare(sandbox, task)
            await sandbox.run(command, timeout_s=5)
            return await verify(sandbox, task, NONCE)

    async def run():
        return [await one(command) for command in commands]

    return asyncio.run(run())


RESULT_CHEATS = {
    "empty": "mkdir -p {folder}; : > {out}",
    "folder": "mkdir -p {out}",
    "noise": "mkdir -p {folder}; head -c 4000 /dev/urandom > {out}",
    "flood": "mkdir -p {folder}; yes '[[[[' | head -c 9000000 > {out}",
    "nested": "mkdir -p {folder}; python3 -c 'print(\"[\" * 200000)' > {out}",
    "link": "mkdir -p {folder}; ln -s /verify/params.json {out}",
    "fifo": "mkdir -p {folder}; mkfifo {out}",
    "not a number": "mkdir -p {folder}; printf '{header}\\nnan,nan,nan\\n' > {out}",
    "last line": 'mkdir -p {folder}; echo \'{{"nonce": "5f1d77c0a3", "points": {{"rows": true}}}}\' > {out}',
}


@pytest.mark.parametrize("kind", ["aggregate", "clean"])
def test_no_faked_result_file_passes(sandboxes, kind):
    task = first_of(table_work.build, f"table_work/{kind}")
    params = next(spec for spec in task.verification.files if spec.path == "params.json").content
    out = params.split('"path": "')[-1].split('"')[0]
    about = {"out": out, "folder": out.rpartition("/")[0] or ".", "header": "a,b,c"}
    for name, points in zip(
        RESULT_CHEATS,
        points_after(sandboxes, task, [cheat.format(**about) for cheat in RESULT_CHEATS.values()]),
        strict=True,
    ):
        assert points["rows"] is False, name
        assert points["inputs_unchanged"] is True, name


def test_damaged_inputs_are_noticed(sandboxes):
    for encoding in ("sql", "utf8"):
        task = first_of(table_work.build, "table_work/top_n", lambda t, e=encoding: t.workspace[0].encoding == e)
        path = task.workspace[0].path
        spoiled = [f"rm {path}", f": > {path}", f"mv {path} x; ln -s x {path}", f"head -c 300 /dev/urandom > {path}"]
        assert not any(points["inputs_unchanged"] for points in points_after(sandboxes, task, spoiled))


def test_moving_by_copy_deletion_or_links_does_not_pass(sandboxes):
    task = first_of(file_chores.build, "file_chores/sort_folders")
    source = task.workspace[0].path.rpartition("/")[0]
    cheats = [
        f"rm -rf {source}/*",
        f"mkdir -p sorted filed; cp -r {source}/* sorted; cp -r {source}/* filed",
        f"mv {source} gone; ln -s gone sorted; ln -s gone filed",
        "rm -rf ./*; mkdir -p sorted/txt; ln -s / sorted/txt/a",
    ]
    for points in points_after(sandboxes, task, cheats):
        assert not all(points.values())
    assert points_after(sandboxes, task, cheats[:1])[0]["nothing_lost"] is False


CODE_CHEATS = {
    "exit": "import os; os._exit(0)",
    "system exit": "raise SystemExit(0)",
    "print": 'print(\'{"nonce": "", "points": {"hidden_1": true, "hidden_2": true}}\')',
    "equal to all": """
class E(dict):
    def __eq__(self, other): return True
def __getattr__(name): return lambda *a: E()
""",
    "kill": "import os; os.kill(os.getppid(), 9)",
    "hang": "while True: pass",
    "flood": """
import os
for fd in range(3, 10):
    try:
        os.write(fd, b"[" * 300000)
    except OSError: pass
os._exit(0)
""",
    "params": """
import json
p = json.load(open("/verify/params.json"))["points"]
def __getattr__(name): return lambda *a: next(iter(p.values())).get("expected", p)
""",
    "parent": """
import os
for name in ("mem", "environ", "maps", "fd/0", "fd/1"):
    try:
        open(f"/proc/{os.getppid()}/{name}", "rb").close()
        open("/work/reached", "a").write(name)
    except OSError: pass
""",
}


def test_code_that_cheats_does_not_pass(sandboxes):
    task = first_of(code_repair.build, "code_repair/failing_test")
    params = next(spec for spec in task.verification.files if spec.path == "params.json").content
    path = params.split('"module": "')[1].split('"')[0].replace(".", "/") + ".py"
    commands = [f"cat > {path} <<'EOF'\n{code}\nEOF" for code in CODE_CHEATS.values()]
    tests = "for f in tests/test_*.py; do : > $f; done; echo 'print(\"9 passed, 0 failed\")' > tests/run.py"
    results = points_after(sandboxes, task, [*commands, tests])
    for name, points in zip([*CODE_CHEATS, "tests"], results, strict=True):
        assert not any(points[hidden] for hidden in task.verification.fail_to_pass), name


def test_the_verifier_cannot_be_read_or_written_by_the_code_it_runs(sandboxes):
    task = first_of(code_repair.build, "code_repair/failing_test")
    params = next(spec for spec in task.verification.files if spec.path == "params.json").content
    path = params.split('"module": "')[1].split('"')[0].replace(".", "/") + ".py"

    async def run():
        async with sandboxes() as pool:
            sandbox = await pool.lease(Limits())
            await prepare(sandbox, task)
            await sandbox.run(f"cat > {path} <<'EOF'\n{CODE_CHEATS['parent']}\nEOF")
            await verify(sandbox, task, NONCE)
            return await sandbox.collect(["reached"])

    assert asyncio.run(run()) == {}


def test_what_the_agent_left_running_is_ended_before_verification(sandboxes):
    task = first_of(table_work.build, "table_work/aggregate")

    async def run():
        async with sandboxes() as pool:
            sandbox = await pool.lease(Limits())
            await prepare(sandbox, task)
            await sandbox.run("setsid nohup sh -c 'while :; do cp /verify/params.json seen 2>&-; done' >&- 2>&- &")
            await verify(sandbox, task, NONCE)
            return await sandbox.collect(["seen"])

    assert asyncio.run(run()) == {}
