"""The HTTP engine against a real server on 127.0.0.1 that misbehaves on demand."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agents.engine.base import ChatTurn, GenerateRequest, Sampling
from agents.engine.http import HttpEngine
from agents.engine.load import load_engine
from schemas.errors import ContextFull, EngineRefused, EngineUnavailable
from schemas.recipe import EngineSettings


def completion(**choice) -> dict:
    entry = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"} | choice
    return {"model": "served", "choices": [entry], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def with_ids(prompt=(5, 6, 7)) -> dict:
    logprobs = {"content": [{"token": "hel", "logprob": -0.5}, {"token": "lo", "logprob": -0.25}]}
    return completion(token_ids=[8, 9], logprobs=logprobs) | {"prompt_token_ids": list(prompt)}


class Server:
    """Plays its `script`, one entry a request; the last one is repeated. Keeps what it was sent."""

    def __init__(self) -> None:
        self.script: list = []
        self.bodies: list[dict] = []
        self.headers: list[dict] = []
        self.times: list[float] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        app = Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])])
        self.server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="error"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def answer(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        self.times.append(time.monotonic())
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return step if isinstance(step, Response) else await step()


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.server.run, daemon=True)
    thread.start()
    for _ in range(500):
        if server.server.started:
            break
        threading.Event().wait(0.02)
    yield server
    server.server.should_exit = True
    thread.join(10)


@pytest.fixture
def server(running: Server) -> Server:
    running.script, running.bodies, running.headers, running.times = [], [], [], []
    return running


def request(**changes) -> GenerateRequest:
    sampling = Sampling(**{"max_tokens": 40, "seed": 3, "stop": ("END",), "effort": 50} | changes.pop("sampling", {}))
    return GenerateRequest((ChatTurn("user", "hi"),), "c", sampling, **changes)


def ask(server: Server, *requests: GenerateRequest, **options):
    async def run():
        engine = HttpEngine(server.url, "served", 4096, **{"wait_initial_s": 0.01, "attempts": 4} | options)
        try:
            return await asyncio.gather(*[engine.generate(r) for r in requests])
        finally:
            await engine.close()
            await engine.close()

    return asyncio.run(run())


def error(status: int, message: str = "no", **headers) -> Response:
    return JSONResponse({"error": {"message": message}}, status, headers)


def test_what_is_sent_and_what_comes_back(server):
    server.script = [JSONResponse(with_ids())]
    (reply,) = ask(server, request(grammar="start: /x/"), api_key="k-1")
    assert server.headers[0]["authorization"] == "Bearer k-1"
    sent = server.bodies[0]
    assert sent["messages"] == [{"role": "user", "content": "hi"}]
    assert (sent["max_tokens"], sent["seed"], sent["stop"]) == (20, 3, ["END"])
    assert sent["return_token_ids"] is True
    assert sent["structured_outputs"] == {"grammar": "start: /x/"}
    assert (reply.text, reply.finish_reason, reply.policy_version) == ("hello", "stop", "served")
    assert (reply.prompt_ids, reply.output_ids, reply.logprobs) == ((5, 6, 7), (8, 9), (-0.5, -0.25))


def test_prompt_ids_are_those_after_the_context(server):
    server.script = [JSONResponse(with_ids((5, 6, 7, 8)))]
    (reply,) = ask(server, request(context_ids=(5, 6)))
    assert reply.prompt_ids == (7, 8)


def test_ids_that_do_not_continue_the_context_are_not_trusted(server):
    server.script = [JSONResponse(with_ids((5, 6, 7, 8)))]
    (reply,) = ask(server, request(context_ids=(5, 9)))
    assert (reply.text, reply.prompt_ids, reply.output_ids, reply.logprobs) == ("hello", None, None, None)


def test_a_server_without_ids_gives_none(server):
    server.script = [JSONResponse(completion(finish_reason="length", message={"role": "assistant", "content": None}))]
    (reply,) = ask(server, request())
    assert (reply.text, reply.finish_reason) == ("", "length")
    assert (reply.prompt_ids, reply.output_ids, reply.logprobs) == (None, None, None)


def test_a_server_that_refuses_the_id_field_is_asked_without_it(server):
    server.script = [error(400, "Unrecognized request argument: return_token_ids"), JSONResponse(completion())]
    assert ask(server, request())[0].text == "hello"
    assert ["return_token_ids" in body for body in server.bodies] == [True, False]


@pytest.mark.parametrize(
    "trouble",
    [
        error(500),
        error(503),
        error(429),
        Response(b'{"choices": [', media_type="application/json"),
        Response(b"\xff\xfe", media_type="application/json"),
        JSONResponse({"choices": []}),
        JSONResponse([1, 2]),
    ],
)
def test_trouble_that_passes_is_tried_again(server, trouble):
    server.script = [trouble, trouble, JSONResponse(completion())]
    assert ask(server, request())[0].text == "hello"
    assert len(server.bodies) == 3


def test_trouble_that_stays_is_unavailable(server):
    server.script = [error(500, "out of memory")]
    with pytest.raises(EngineUnavailable, match="out of memory"):
        ask(server, request())
    assert len(server.bodies) == 4


def test_retry_after_is_waited_for(server):
    server.script = [error(429, "slow down", **{"Retry-After": "0.6"}), JSONResponse(completion())]
    ask(server, request())
    assert 0.6 <= server.times[1] - server.times[0] < 5


def test_silence_is_tried_again(server):
    async def silent() -> Response:
        await asyncio.sleep(1.0)
        return JSONResponse(completion())

    server.script = [silent, JSONResponse(completion())]
    assert ask(server, request(), timeout_s=0.3)[0].text == "hello"


def test_nobody_there_is_unavailable(server):
    async def run():
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            engine = HttpEngine(
                f"http://127.0.0.1:{closed.getsockname()[1]}/v1", "m", 100, attempts=2, wait_initial_s=0.01
            )
            with pytest.raises(EngineUnavailable, match="2 tries"):
                await engine.generate(request())
            await engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_refusal_is_not_tried_again_and_says_why(server, status):
    server.script = [error(status, "context length exceeded")]
    with pytest.raises(EngineRefused, match=f"HTTP {status}: context length exceeded"):
        ask(server, request())
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "message", ["code context_length_exceeded", "This model's maximum context length is 8192 tokens. However, ..."]
)
def test_a_conversation_that_is_too_long_is_told_apart(server, message):
    server.script = [error(400, message)]
    with pytest.raises(ContextFull):
        ask(server, request())


def test_a_server_without_structured_outputs_says_what_to_set(server):
    server.script = [error(400, "Unrecognized request argument supplied: structured_outputs")]
    with pytest.raises(EngineRefused, match="constrain_tools: false"):
        ask(server, request(grammar="start: /a/"))


def test_concurrency_is_bounded(server):
    active, seen = 0, []

    async def slow() -> Response:
        nonlocal active
        active += 1
        seen.append(active)
        await asyncio.sleep(0.05)
        active -= 1
        return JSONResponse(completion())

    server.script = [slow]
    assert len(ask(server, *[request() for _ in range(20)], concurrency=4)) == 20
    assert max(seen) == 4


def test_settings_with_a_url_make_an_http_engine(server, monkeypatch):
    server.script = [JSONResponse(completion())]
    monkeypatch.setenv("SOME_KEY", "k-2")
    settings = EngineSettings(url=server.url, model="served", api_key_env="SOME_KEY", context=512)

    async def run():
        engine = load_engine(settings)
        reply = await engine.generate(request())
        engine.release("c")
        await engine.close()
        return engine, reply

    engine, reply = asyncio.run(run())
    assert (engine.model, engine.context, reply.text) == ("served", 512, "hello")
    assert server.headers[0]["authorization"] == "Bearer k-2"
