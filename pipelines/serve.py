"""`trajmill serve`: a model behind OpenAI's HTTP API until a signal ends it. Called by `cli`."""

import asyncio
import signal
import socket
from typing import TYPE_CHECKING

import uvicorn

from agents.engine.load import load_embedded
from agents.engine.serving.app import make_app
from agents.sandbox.node.guard import Impatient
from schemas.recipe import EngineSettings

if TYPE_CHECKING:
    from agents.engine.engine import EmbeddedEngine

GOODBYE_S = 2
"""Requests may go on for so long after a signal; what is left then is told that the engine has stopped."""
CUT_S = 10
"""Connections that are still open so long after a signal are cut."""
IDLE_S = 75
"""A connection without requests is closed after so long."""


def serve(settings: EngineSettings, host: str, port: int, *, max_queue: int, token: str | None) -> None:
    """Load the model, print the URL, serve until SIGTERM or SIGINT. `port` 0 picks a free one."""
    asyncio.run(_serve(settings, host, port, max_queue, token))


async def _serve(settings: EngineSettings, host: str, port: int, max_queue: int, token: str | None) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=1024) as listening:
        # asyncio does not do it for a socket made so, and Nagle's algorithm adds 40 ms to every chunk.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        engine = load_embedded(settings)
        try:
            # The tables of constrained decoding take a second to make: not during the first request that needs them.
            await asyncio.to_thread(lambda: engine.tokenizer.constraint)
            app = make_app(engine, max_queue=max_queue, token=token)
            name = f"[{host}]" if ":" in host else host
            config = uvicorn.Config(
                app,
                http=Impatient,
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="off",
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=CUT_S,
            )
            server, signalled = uvicorn.Server(config), asyncio.Event()

            def hear() -> None:
                server.should_exit = True
                signalled.set()

            # uvicorn hears signals only once it has begun, and hands them on when it has ended: without handlers they
            # end the process.
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, hear)
            ending = asyncio.create_task(_end(engine, signalled))
            print(f"serving {engine.model} on http://{name}:{listening.getsockname()[1]}/v1", flush=True)
            await server.serve(sockets=[listening])
            ending.cancel()
        finally:
            await engine.close()


async def _end(engine: "EmbeddedEngine", signalled: asyncio.Event) -> None:
    """Let requests go on for a while after a signal."""
    await signalled.wait()
    await asyncio.sleep(GOODBYE_S)
    await engine.close()
