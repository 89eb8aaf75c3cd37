"""A server in a thread, for tests that ask it over TCP."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx
import openai
import uvicorn

from agents.engine.serving.app import make_app


@dataclass
class Live:
    """A running server. `call` runs a function on its event loop."""

    url: str
    engine: Any
    loop: asyncio.AbstractEventLoop

    def call(self, function: Callable[[], Any]) -> Any:
        async def run():
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what must happen; the test's time limit ends it otherwise."""

        async def run():
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)

    @cached_property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0)

    def post(self, body: Any, path: str = "/chat/completions", **options) -> httpx.Response:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | options.pop("headers", {})
        return httpx.post(self.url + path, content=raw, headers=headers, timeout=20, **options)

    def get(self, path: str, **options) -> httpx.Response:
        return httpx.get(self.url.removesuffix("/v1") + path, timeout=20, **options)


@contextlib.contextmanager
def live(engine: Any, **options) -> Iterator[Live]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(make_app(engine, **options), log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        loops: list[asyncio.AbstractEventLoop] = []

        async def run():
            loops.append(asyncio.get_running_loop())
            await server.serve(sockets=[listening])

        thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        while not (loops and server.started):
            thread.join(0.01)
        try:
            yield Live(url, engine, loops[0])
        finally:
            server.should_exit = True
            thread.join(10)
