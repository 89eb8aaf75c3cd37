"""Scripted sandboxes that know the hand-made task, and die when a test says so."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agents.sandbox.base import Limits, Priority, Snapshot
from agents.sandbox.fake import Call, FakeFactory, FakeSandbox, FakeSnapshot, Reply, ok
from agents.sandbox.pool import Pool, PoolSettings
from schemas.errors import SandboxDied

Deaths = Mapping[tuple[int, str], SandboxDied]
"""What kills which sandbox (by the order in which they are opened), at which word in a command."""
VERIFY_COMMAND = "python3 -I /verify/verify.py"


@dataclass(frozen=True)
class CountedSnapshot(FakeSnapshot):
    """Tells its factory when it is given up."""

    boxes: "Boxes"

    async def close(self) -> None:
        self.boxes.held -= 1


class Boxes(FakeFactory):
    """`live` counts sandboxes that are open, `most` the most at once, `forks` those that were forked.

    `held` counts snapshots that were not given up, `most_held` the most at once.
    """

    def __init__(self, deaths: Deaths | None = None) -> None:
        super().__init__(self._play)
        self.deaths = dict(deaths or {})
        self.live = self.most = self.forks = self.held = self.most_held = 0

    async def open(self, limits: Limits, priority: Priority = "latency") -> FakeSandbox:
        return self._counted(await super().open(limits, priority))

    async def fork(self, snapshot: Snapshot, priority: Priority = "latency") -> FakeSandbox:
        self.forks += 1
        return self._counted(await super().fork(snapshot, priority))

    def pool(self, **settings: object) -> Callable[[], Pool]:
        return lambda: Pool(self, PoolSettings(**settings))

    def commands(self) -> list[list[str]]:
        """What each sandbox ran, verification left out."""
        lines = ([_line(call) for call in box.calls] for box in self.opened)
        return [[line for line in some if line != VERIFY_COMMAND] for some in lines]

    def _counted(self, box: FakeSandbox) -> FakeSandbox:
        self.live += 1
        self.most = max(self.most, self.live)
        close = box.close

        async def closed() -> None:
            self.live -= not box.closed
            await close()

        seal = box.seal

        async def sealed() -> CountedSnapshot:
            snapshot = await seal()
            self.held += 1
            self.most_held = max(self.most_held, self.held)
            return CountedSnapshot(snapshot.limits, snapshot.files, self)

        box.close, box.seal = closed, sealed  # type: ignore[method-assign]
        return box

    def _play(self, box: FakeSandbox, call: Call) -> Reply:
        line = _line(call)
        for (number, word), error in self.deaths.items():
            if self.opened.index(box) == number and word in line:
                box.gone = error
                raise error
        if line == VERIFY_COMMAND:
            points = {
                "shouted": box.files.get("/work/out.txt") == b"ONE TWO\n",
                "kept": "/work/in.txt" in box.files,
            }
            return ok(json.dumps({"nonce": call.stdin.decode(), "points": points}).encode())
        if line.startswith("tr "):
            box.files["/work/out.txt"] = box.files["/work/in.txt"].upper()
        if line.startswith("cat "):
            return ok(box.files.get(f"/work/{line.split()[1]}", b"nothing\n"))
        return ok()


def _line(call: Call) -> str:
    return call.command if isinstance(call.command, str) else " ".join(call.command)
