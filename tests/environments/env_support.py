"""A pattern to build from, and an uncontained stand-in for a sandbox: for tests of environments only."""

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

from agents.sandbox.base import ExecResult, Limits
from schemas.pattern import Bucket, CategoryCount, UsagePattern


def usage_pattern(length="medium", domain="data_analysis", errors=1) -> UsagePattern:
    calls = {"short": 2, "medium": 4, "long": 16}[length]
    one = [Bucket(low=4, count=5)]
    return UsagePattern(
        pattern_id=f"pattern_{length}_{domain}_{errors}",
        domain=domain,
        categories=[CategoryCount(category="shell", count=9)],
        transitions=[],
        turns=one,
        calls=[Bucket(low=calls, count=5)],
        tokens=[Bucket(low=1024, count=5)],
        errors=[Bucket(low=errors, count=5)],
        recoveries=[],
        agents_together=False,
        sessions=5,
        partners=3,
        support_hash="0" * 32,
    )


class LocalSandbox:
    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("work", "verify"):
            (root / name).mkdir()

    async def run(self, command, *, timeout_s=None, stdin=b"", cwd="/work", merge_stderr=False):
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        argv = [str(self.root) + part if part.startswith("/verify/") else part for part in argv]
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=str(self.root) + cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if merge_stderr else asyncio.subprocess.PIPE,
            start_new_session=True,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(self.root / "work")},
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin), timeout_s or 30)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            return ExecResult(None, signal.SIGKILL, b"", b"", True, 0, 0.0)
        return ExecResult(process.returncode, None, out, err or b"", False, 0, 0.0)

    async def put(self, files, *, root="/work", executable=frozenset()):
        for name, content in files.items():
            path = self.root / root.strip("/") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755 if name in executable else 0o644)

    async def collect(self, paths):
        return {p: (self.root / "work" / p).read_bytes() for p in paths if (self.root / "work" / p).is_file()}

    async def kill_all(self):
        pass

    async def close(self):
        shutil.rmtree(self.root, ignore_errors=True)


class LocalFactory:
    async def open(self, limits: Limits):
        return LocalSandbox(Path(tempfile.mkdtemp(prefix="env-test-")))
