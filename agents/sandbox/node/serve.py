"""`trajmill node`: this host's sandboxes served until a signal ends it."""

import asyncio
import socket

import uvicorn

from agents.sandbox.base import Limits, SandboxFactory
from agents.sandbox.native.host import NativeFactory
from agents.sandbox.node.guard import Impatient
from agents.sandbox.node.link import KEPT_S
from agents.sandbox.node.server import make_app
from agents.sandbox.pool import PoolSettings
from agents.sandbox.signals import Signals, allow_open_files

GOODBYE_S = 2
"""Requests may go on for so long after a signal."""


def serve(
    host: str, port: int, settings: PoolSettings, token: str | None, *, accept_process_memory_limit: bool = False
) -> None:
    """Serve until SIGTERM or SIGINT, then end every sandbox. Raises SandboxUnsupported on a host that makes none."""
    allow_open_files()
    factory = NativeFactory(accept_process_memory_limit=accept_process_memory_limit)
    asyncio.run(_serve(host, port, settings, token, factory))


async def _serve(host: str, port: int, settings: PoolSettings, token: str | None, factory: SandboxFactory) -> None:
    try:
        await (await factory.open(Limits())).close()  # fail here and not with the first lease
        app = make_app(factory, settings, Signals(), token=token)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family, backlog=1024) as listening:
            # asyncio does not do it for a socket made so, and Nagle's algorithm adds 40 ms to every answer.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = f"[{host}]" if ":" in host else host
            print(f"listening on http://{name}:{listening.getsockname()[1]}", flush=True)
            config = uvicorn.Config(
                app,
                http=Impatient,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=int(4 * KEPT_S),
                timeout_graceful_shutdown=GOODBYE_S,
            )
            await uvicorn.Server(config).serve(sockets=[listening])
    finally:
        await factory.close()
