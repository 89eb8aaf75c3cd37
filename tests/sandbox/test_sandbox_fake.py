"""The scripted sandbox keeps base.py's contract, and refuses what its script does not know."""

import asyncio

import pytest

from agents.sandbox.base import VERIFY, Limits, Sandbox, SandboxFactory
from agents.sandbox.fake import Call, FakeFactory, FakeSandbox, failed, ok, timed_out
from schemas.errors import SandboxDied, SandboxError


def count_files(sandbox: FakeSandbox, call: Call):
    return ok(f"{len(sandbox.files)} {call.cwd}".encode() + call.stdin)


def test_script_files_and_calls():
    async def main():
        factory: SandboxFactory = FakeFactory(
            {"ls": ok(b"a\n", b"warn"), ("cat", "x"): failed(2, b"no"), "slow": timed_out(), "count": count_files}
        )
        box: Sandbox = await factory.open(Limits())
        assert (await box.run("ls")).stdout == b"a\n"
        assert (await box.run("ls", merge_stderr=True)).stdout == b"a\nwarn"
        assert (await box.run(["cat", "x"])).exit_code == 2
        assert (await box.run("slow", timeout_s=1)).timed_out
        await box.put({"d//x": b"1", "y": b"2"})
        await box.put({"check": b"3"}, root=VERIFY)
        assert await box.collect(["d/x", "y", "check", "../verify/check"]) == {"d/x": b"1", "y": b"2"}
        assert (await box.run("count", stdin=b"!", cwd="/tmp")).stdout == b"3 /tmp!"
        with pytest.raises(SandboxError, match="no reply to 'unknown'"):
            await box.run("unknown")
        for path in ("../x", "/x", ""):
            with pytest.raises(ValueError, match="below"):
                await box.put({path: b""})
        await box.kill_all()
        await box.close()
        await box.close()
        with pytest.raises(SandboxDied):
            await box.run("ls")
        return factory.opened[0]

    box = asyncio.run(main())
    assert [call.command for call in box.calls][:3] == ["ls", "ls", ("cat", "x")]
    assert box.calls[3] == Call("slow", b"", "/work", 1) and box.kills == 1 and box.closed


def test_script_as_a_function():
    def script(sandbox: FakeSandbox, call: Call):
        if isinstance(call.command, str) and call.command.startswith("write "):
            sandbox.files["/work/out"] = call.command.removeprefix("write ").encode()
            return ok()
        return None

    async def main():
        box = await FakeFactory(script).open(Limits())
        await box.run("write hello")
        assert await box.collect(["out"]) == {"out": b"hello"}
        with pytest.raises(SandboxError):
            await box.run("read")

    asyncio.run(main())
