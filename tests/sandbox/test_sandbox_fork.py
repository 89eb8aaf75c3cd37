"""Forks of a sealed sandbox: the same files without copying them, and nothing that one does reaches another."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.sandbox.base import Limits
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.native.sandbox import MAX_LAYERS
from schemas.errors import SandboxDied, SandboxError, SandboxUnsupported


def with_factory(body):
    async def main():
        factory = NativeFactory(accept_process_memory_limit=True)
        try:
            first = await factory.open(Limits())
            if not first.can_fork:
                pytest.skip("this kernel cannot fork files (Linux 6.15)")
            return await body(factory, first)
        finally:
            await factory.close()

    return asyncio.run(main())


def test_parent_siblings_and_children_are_apart():
    async def body(factory, parent):
        await parent.put({"kept": b"1", "changed": b"old", "gone": b"x", "dir/inner": b"y", "mode.sh": b"#!/bin/sh\n"})
        await parent.run("echo t > /tmp/t; echo s > /dev/shm/s; ln -s kept link; mkfifo pipe; chmod +x mode.sh")
        snapshot = await parent.seal()
        one, two = await asyncio.gather(factory.fork(snapshot), factory.fork(snapshot))
        seen = await one.run(
            "cat kept changed gone dir/inner link /tmp/t /dev/shm/s; test -p pipe && ./mode.sh && whoami"
        )
        assert seen.stdout == b"1oldxy1t\ns\nagent\n", seen
        done = await one.run(
            "echo new > changed; rm gone; rm -r dir; mkdir dir; echo mine > dir/other; echo n > fresh; mv kept renamed;"
            "rm /tmp/t; chmod 700 mode.sh; ls -A dir"
        )
        assert (done.exit_code, done.stdout, done.stderr) == (0, b"other\n", b"")
        names = ["kept", "changed", "gone", "dir/inner", "dir/other", "fresh", "renamed"]
        assert await one.collect(names) == {
            "changed": b"new\n",
            "dir/other": b"mine\n",
            "fresh": b"n\n",
            "renamed": b"1",
        }
        before = {"kept": b"1", "changed": b"old", "gone": b"x", "dir/inner": b"y"}
        assert await two.collect(names) == await parent.collect(names) == before
        again = await one.seal()
        await parent.close()
        await one.close()
        child = await factory.fork(again)
        assert await child.collect(names) == {
            "changed": b"new\n",
            "dir/other": b"mine\n",
            "fresh": b"n\n",
            "renamed": b"1",
        }
        late = await factory.fork(snapshot)  # its sandbox is gone
        assert await late.collect(names) == before
        await snapshot.close()
        await snapshot.close()
        with pytest.raises(SandboxError, match="closed"):
            await factory.fork(snapshot)
        assert (await child.run("cat dir/other /dev/shm/s")).stdout == b"mine\ns\n"
        assert (await late.run("cat dir/inner > back && cat back")).stdout == b"y"

    with_factory(body)


def test_a_sealed_sandbox_does_nothing_more():
    async def body(factory, parent):
        running = asyncio.ensure_future(parent.run("echo up > flag; sleep 100"))
        while not await parent.collect(["flag"]):
            pass
        snapshot = await parent.seal()
        assert (await running).signal == 9
        for attempt in (parent.run("true"), parent.put({"a": b""})):
            with pytest.raises(SandboxError, match="sealed"):
                await attempt
        assert await parent.collect(["flag"]) == {"flag": b"up\n"}
        assert (await parent.seal()).layers == snapshot.layers
        await parent.close()
        with pytest.raises(SandboxDied):
            await parent.seal()

    with_factory(body)


def test_a_fork_has_limits_of_its_own_and_its_parents_verify_is_not_in_it():
    async def body(factory, parent):
        await parent.put({"secret": b"answer"}, root="/verify")
        await parent.run("head -c 40M /dev/zero > big")
        fork = await factory.fork(await parent.seal())
        assert fork.limits == parent.limits
        done = await fork.run("ls -A /verify; head -c 50M /dev/zero > more; head -c 50M /dev/zero > most; echo $?")
        assert done.stdout.split() == [b"1"] and b"No space left" in done.stderr

    with_factory(body)


def test_forks_of_forks_up_to_a_stated_depth():
    async def body(factory, box):
        for depth in range(MAX_LAYERS):
            await box.put({f"f{depth}": str(depth).encode()})
            snapshot = await box.seal()
            await box.close()
            box = await factory.fork(snapshot)
        names = [f"f{depth}" for depth in range(MAX_LAYERS)]
        assert await box.collect(names) == {name: name[1:].encode() for name in names}
        with pytest.raises(SandboxError, match="64 forks deep"):
            await box.seal()
        return os.getpid()

    with_factory(body)


def test_snapshots_leave_no_descriptor_behind():
    async def body(factory, parent):
        def count():
            return len(list(Path("/proc/self/fd").iterdir()))

        await parent.put({"a": b"1"})
        before = count()
        snapshot = await parent.seal()
        forks = [await factory.fork(snapshot) for _ in range(3)]
        deeper = await forks[0].seal()
        for box in forks:
            await box.close()
        await snapshot.close()
        await deeper.close()
        del snapshot, deeper, forks
        assert count() == before + 1  # the parent's own layer

    with_factory(body)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "remove", "folder", "clear", "rename"]),
        st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "e"]),
        st.sampled_from(["a", "b", "d/a", "d", "d/e", "e"]),
    ),
    max_size=8,
)
SHELL = {
    "write": "mkdir -p $(dirname {0}); echo {0}{1} >> {0}",
    "remove": "rm -rf {0}",
    "folder": "rm -rf {1}; mkdir -p {1}",
    "clear": "rm -rf {1}",
    "rename": "mv {0} {1}",
}
LISTING = "find . -printf '%y %m %p\\n' | sort; find . -type f | sort | xargs -r tail -v -c 999"


def script(actions):
    return "".join(f"({SHELL[name].format(*paths)}) 2>/dev/null;" for name, *paths in actions) + "true"


@settings(max_examples=15, deadline=None)
@given(st.lists(ACTIONS, min_size=2, max_size=4))
def test_a_chain_of_forks_is_as_one_sandbox(steps):
    """Whatever is done to the files: a fork for each step ends with the same tree as one sandbox that did all."""

    async def body(factory, box):
        plain = await factory.open(Limits())
        for actions in steps:
            await plain.run(script(actions))
            await box.run(script(actions))
            box = await factory.fork(await box.seal())
        trees = [(await each.run(LISTING)).stdout for each in (plain, box)]
        assert trees[0] == trees[1]

    with_factory(body)


def test_nothing_is_copied():
    async def body(factory, parent):
        await parent.run("head -c 50M /dev/urandom > big")
        snapshot = await parent.seal()
        forks = [await factory.fork(snapshot) for _ in range(20)]
        said = await asyncio.gather(*(fork.run("stat -c %s big; df --output=used -m /work") for fork in forks))
        assert {tuple(done.stdout.split()) for done in said} == {(b"52428800", b"Used", b"0")}

    with_factory(body)


def test_what_is_no_native_snapshot_is_refused():
    async def body(factory, parent):
        with pytest.raises(TypeError):
            await factory.fork(object())
        parent.can_fork = False
        with pytest.raises(SandboxUnsupported, match=r"6\.15"):
            await parent.seal()

    with_factory(body)
