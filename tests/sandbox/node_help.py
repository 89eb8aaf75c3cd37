"""For the tests of nodes: a node agent on a real port, in this event loop or as a process to kill."""

import asyncio
import contextlib
import socket

import httpx
import uvicorn
from pool_support import run

from agents.sandbox.base import Limits
from agents.sandbox.fake import FakeFactory, FakeSandbox, failed, ok
from agents.sandbox.node.client import Nodes
from agents.sandbox.node.guard import Impatient
from agents.sandbox.node.server import make_app
from agents.sandbox.pool import PoolSettings
from agents.sandbox.signals import Reading

ROOMY = Reading(memory_mb=65536, memory_total_mb=65536, pids=30000, pids_total=32768, fds=10000, disk_mb=10000)
SMALL = Limits(memory_mb=64, disk_mb=16)


def script(sandbox: FakeSandbox, call):
    """`echo`, `fail`, `write`, as a shell would; the fake's own error for the rest."""
    command = call.command if isinstance(call.command, str) else " ".join(call.command)
    word, _, rest = command.partition(" ")
    if word == "echo":
        return ok(rest.encode("utf-8", "surrogatepass") + call.stdin + b"\n", b"warned")
    if word == "write":
        sandbox.files["/work/out"] = rest.encode()
        return ok()
    return failed(7) if word == "fail" else None


class SlowSandbox(FakeSandbox):
    """Knows `sleep` too, and remembers whose sleep was cut short."""

    cut = 0

    async def run(self, command, **options):
        if isinstance(command, str) and command.startswith("sleep "):
            try:
                await asyncio.sleep(float(command.split()[1]))
            except asyncio.CancelledError:
                SlowSandbox.cut += 1
                raise
            return ok(b"slept\n")
        return await super().run(command, **options)


class SlowFactory(FakeFactory):
    """Makes those."""

    def __init__(self):
        super().__init__(script)

    async def open(self, limits, priority="latency"):
        return self._keep(SlowSandbox(self.script, limits, priority))


@contextlib.asynccontextmanager
async def node(max_live=4, signals=lambda: ROOMY, factory=None, http=Impatient, port=0, **options):
    """A node agent on a port of its own in this loop; its URL."""
    app = make_app(factory or SlowFactory(), PoolSettings(max_live=max_live), signals, **options)
    with socket.create_server(("127.0.0.1", port)) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(app, http=http, log_level="error", timeout_keep_alive=60, timeout_graceful_shutdown=1)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listening])
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            await server.shutdown(sockets=[listening])


async def until(condition, seconds=5.0):
    """Wait for what happens elsewhere; fails when it does not."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (nobody else would set an event)
            await asyncio.sleep(0.01)


class Near:
    """Node agents that are asked without a network, so that time can jump: `nodes()` gives clients of all of them."""

    def __init__(self, apps):
        self.apps = {f"http://127.0.0.1:{1 + number}": app for number, app in enumerate(apps)}
        self.clients = []

    def nodes(self, **options) -> Nodes:
        pool = Nodes(list(self.apps), **options)
        self.clients.append(pool)
        for url, link in pool._links.items():
            self.connect(link, self.apps[url])
        return pool

    def connect(self, link, app):
        """From now on this answers."""
        headers = link._headers | {"Content-Type": "application/json"}
        link._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=link.url, headers=headers)


def jump(body, *apps):
    """Run `body(near)` on the jumping clock; its clients are closed."""

    async def main():
        near = Near(apps)
        try:
            return await body(near)
        finally:
            for pool in near.clients:
                await pool.close()

    return run(main())


def app(max_live=4, signals=lambda: ROOMY, factory=None, **options):
    """A node agent's application."""
    return make_app(factory or SlowFactory(), PoolSettings(max_live=max_live), signals, **options)
