"""OpenAI's API over TCP, asked with OpenAI's own client: with the real model, and with a fake where timing counts."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_help import Live, live
from small_models import write_llama

from agents.access import token_from
from agents.engine.base import ChatTurn, GenerateRequest, Sampling
from agents.engine.fake import FakeEngine
from agents.engine.http import HttpEngine
from agents.engine.serving.app import MAX_BODY, make_app
from agents.engine.serving.calls import Call, CallReader
from agents.engine.serving.prompt import choice_seed
from schemas.errors import ConfigError, ContextFull, EngineError, EngineRefused

TOKEN = "0123456789abcdef"
HELLO = [{"role": "user", "content": "Say hello to Ann."}]
PLACE = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
PLACE["additionalProperties"] = False
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of a city.", "parameters": PLACE}},
    {"type": "function", "function": {"name": "stop_all"}},
]
FINISHED = 'trajmill_requests_total{{endpoint="/v1/chat/completions",outcome="{}"}}'
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest.fixture(scope="module")
def real(engine) -> Iterator[Live]:
    with live(engine) as server:
        yield server


@pytest.fixture(scope="module")
def shared(tokenizer) -> Iterator[Live]:
    with live(FakeEngine(tokenizer), max_queue=1) as server:
        yield server


@pytest.fixture
def fake(shared) -> Live:
    """The fake with a script of its own, and nothing in flight."""
    engine = shared.engine
    shared.until(lambda: engine.running == 0)
    shared.call(engine.go.set)
    engine.script, engine.requests, engine.cancelled = ["hello"], [], []
    engine.released.clear()
    return shared


def chat(server: Live, **options):
    asked = {"model": server.engine.model, "messages": HELLO, "max_tokens": 12, "temperature": 0} | options
    return server.client.chat.completions.create(**asked)


def body(server: Live, **changes) -> dict:
    return {"model": server.engine.model, "messages": HELLO, "max_tokens": 4} | changes


def text_of(chunks) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


# With the real model.


def test_a_chat_is_what_the_engine_samples(real):
    turns = (ChatTurn("system", "Be short."), ChatTurn("user", "Say hello to Ann."))
    direct = asyncio.run(
        real.engine.generate(GenerateRequest(turns, "direct", Sampling(12, temperature=0.8, top_p=0.9, seed=5)))
    )
    real.engine.release("direct")
    messages = [{"role": "developer", "content": [{"type": "text", "text": "Be short."}]}, *HELLO]
    options = {"messages": messages, "temperature": 0.8, "top_p": 0.9, "seed": 5, "max_completion_tokens": 12}
    reply = chat(real, **options, max_tokens=None, extra_body={"return_token_ids": True})
    choice = reply.choices[0]
    assert (choice.message.content, choice.message.role) == (direct.text, "assistant")
    assert tuple(choice.token_ids) == direct.output_ids
    assert tuple(reply.prompt_token_ids) == direct.prompt_ids
    assert choice.finish_reason == direct.finish_reason
    assert reply.system_fingerprint == direct.policy_version
    assert reply.usage.completion_tokens == len(direct.output_ids)
    assert reply.usage.total_tokens == len(direct.output_ids) + len(direct.prompt_ids)
    assert reply.usage.prompt_tokens_details.cached_tokens == 16  # a block of the same prompt, asked before


def test_a_stream_is_the_same_reply_in_pieces(real):
    options = {"temperature": 0.9, "seed": 3, "logprobs": True, "top_logprobs": 2}
    whole = chat(real, **options, extra_body={"return_token_ids": True})

    async def stream():
        async with openai.AsyncOpenAI(base_url=real.url, api_key="none", max_retries=0) as client:
            asked = {"model": "smollm2", "messages": HELLO, "max_tokens": 12, **options}
            more = {"stream_options": {"include_usage": True}, "extra_body": {"return_token_ids": True}}
            return [chunk async for chunk in await client.chat.completions.create(**asked, stream=True, **more)]

    chunks = asyncio.run(stream())
    shown = [c for c in chunks if c.choices]
    assert text_of(chunks) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in shown if c.choices[0].finish_reason] == [whole.choices[0].finish_reason]
    assert [i for c in shown for i in getattr(c.choices[0], "token_ids", None) or []] == whole.choices[0].token_ids
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    assert not any(hasattr(c, "prompt_token_ids") for c in chunks[1:])
    entries = [e for c in shown if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [(e.token, e.logprob) for e in entries] == [(e.token, e.logprob) for e in whole.choices[0].logprobs.content]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_logprobs_have_the_bytes_of_the_text(real):
    reply = chat(real, messages=[{"role": "user", "content": "Repeat: 日本 🦙"}], logprobs=True, top_logprobs=3, seed=1)
    choice = reply.choices[0]
    entries = choice.logprobs.content
    assert len(entries) == reply.usage.completion_tokens
    assert b"".join(bytes(e.bytes) for e in entries).decode(errors="replace") == choice.message.content
    assert all(e.logprob <= 0 for e in entries)
    assert all(len(e.top_logprobs) == 3 for e in entries)
    assert all(e.top_logprobs == sorted(e.top_logprobs, key=lambda t: -t.logprob) for e in entries)


def test_seeds_and_choices(real):
    options = {"temperature": 1.0, "seed": 11, "max_tokens": 6}
    one, two = chat(real, **options), chat(real, **options, n=2)
    texts = [choice.message.content for choice in two.choices]
    assert one.choices[0].message.content == texts[0] != texts[1]
    assert [choice.index for choice in two.choices] == [0, 1]
    second = chat(real, **options | {"seed": choice_seed(11, 1)})
    assert second.choices[0].message.content == texts[1]


def test_a_stop_string_ends_the_reply(real):
    free = chat(real).choices[0].message.content
    cut = chat(real, stop=["###", free[8:11]])
    assert cut.choices[0].message.content == free[: free.find(free[8:11])]
    assert cut.choices[0].finish_reason == "stop"
    assert text_of(chat(real, stop=free[8:11], stream=True)) == cut.choices[0].message.content


def test_a_demanded_call_is_constrained(real):
    options = {"tools": TOOLS, "max_tokens": 80, "temperature": 1.0, "seed": 2}
    asked = {"model": "smollm2", "messages": HELLO, **options, "tool_choice": "required"}
    with real.client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    (call,) = final.message.tool_calls
    assert call.function.name in ("weather", "stop_all")
    assert json.loads(call.function.arguments).keys() <= {"city"}


def test_a_json_schema_and_the_other_forms_hold(real):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema, "strict": True}}
    options = {"temperature": 1.0, "seed": 4, "max_tokens": 40}
    answer = json.loads(chat(real, **options, response_format=form).choices[0].message.content)
    assert isinstance(answer["n"], int)
    forms = {
        "choice": (["left", 'ri"ght'], lambda text: text in ("left", 'ri"ght')),
        "regex": (r"[ab]{3}/\d", lambda text: set(text[:3]) <= set("ab") and text[3] == "/" and text[4:].isdigit()),
        "grammar": ('start: "yes" | "no"', lambda text: text in ("yes", "no")),
        "json": (json.dumps(schema), lambda text: isinstance(json.loads(text)["n"], int)),
    }
    for name, (value, holds) in forms.items():
        reply = chat(real, **options, extra_body={"structured_outputs": {name: value}})
        assert holds(reply.choices[0].message.content), name


def test_our_own_client_gets_exact_ids_and_logprobs(real):
    request = GenerateRequest(
        (ChatTurn("user", "Name a fruit."),), "mine", Sampling(8, temperature=0.8, seed=7), grammar="start: /[a-z ]+/"
    )

    async def ask(engine):
        result = await engine.generate(request)
        engine.release("mine")
        return result

    async def over_http():
        engine = HttpEngine(real.url, "smollm2", 1024)
        try:
            return await ask(engine)
        finally:
            await engine.close()

    there, here = asyncio.run(over_http()), asyncio.run(ask(real.engine))
    assert there.output_ids == here.output_ids
    assert there.prompt_ids == here.prompt_ids
    assert there.logprobs == pytest.approx(here.logprobs, abs=2e-3)
    assert (there.text, there.policy_version) == (here.text, here.policy_version)


def test_completions_continue_text_and_ids(real):
    client = real.client
    options = {"model": "smollm2", "max_tokens": 6, "temperature": 0, "logprobs": 2}
    by_text = client.completions.create(prompt="The capital of France is", **options)
    ids = real.engine.tokenizer.encode("The capital of France is")
    by_ids = client.completions.create(prompt=ids, **options)
    choice = by_text.choices[0]
    assert choice.text == by_ids.choices[0].text
    assert by_text.usage.prompt_tokens == len(ids)
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.text_offset[1] == len(choice.logprobs.tokens[0])
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs)
    streamed = client.completions.create(prompt=ids, **options, stream=True)
    assert "".join(c.choices[0].text for c in streamed if c.choices) == choice.text


def test_leaving_a_stream_frees_the_engine(real):
    before = real.engine.metrics()
    stream = chat(real, max_tokens=900, stream=True, extra_body={"ignore_eos": True})
    assert next(stream).choices[0].delta.role == "assistant"
    assert next(stream).choices[0].delta.content
    stream.close()
    real.until(lambda: real.engine.metrics().running == 0)
    assert 0 < real.engine.metrics().sampled - before.sampled < 900


def test_too_long_a_prompt_and_a_bad_grammar_are_the_clients_fault(real):
    long = [{"role": "user", "content": "word " * 2000}]
    for options in ({}, {"stream": True}, {"messages": [{"role": "user", "content": "word " * 20000}]}):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(real, **{"messages": long} | options)
        assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="grammar"):
        chat(real, extra_body={"structured_outputs": {"grammar": "start: ((("}})
    with pytest.raises(openai.BadRequestError, match="outside"):
        real.client.completions.create(model="smollm2", prompt=[10**9])


# With the fake.


def test_tools_are_told_and_calls_read_from_free_text(fake):
    fake.engine.script = [f"Let me look.\n{CALL}", f"Let me look.\n{CALL}", "It is <b>warm</b>."]
    reply = chat(fake, tools=TOOLS, max_tokens=64).choices[0]
    (call,) = reply.message.tool_calls
    assert (reply.message.content, reply.finish_reason) == ("Let me look.", "tool_calls")
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Köln"})
    told = fake.engine.requests[0].messages[0]
    assert told.role == "system"
    assert told.content.startswith('Tools:\n{"name": "weather", "description": "Weather of a city.", "parameters"')
    assert fake.engine.requests[0].grammar is None

    chunks = list(chat(fake, tools=TOOLS, max_tokens=64, stream=True))
    parts = [part for c in chunks for part in c.choices[0].delta.tool_calls or []]
    assert text_of(chunks) == "Let me look."
    assert (parts[0].function.name, parts[0].index) == ("weather", 0)
    assert json.loads("".join(part.function.arguments for part in parts)) == {"city": "Köln"}

    history = [*HELLO, reply.message, {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}]
    answer = chat(fake, messages=history, tools=TOOLS, max_tokens=64).choices[0]
    assert (answer.message.content, answer.message.tool_calls) == ("It is <b>warm</b>.", None)
    turns = fake.engine.requests[-1].messages
    assert turns[2:] == (
        ChatTurn("assistant", f"Let me look.\n{CALL}"),
        ChatTurn("user", "<tool_response>\n20 degrees\n</tool_response>"),
    )


@pytest.mark.parametrize(
    ("said", "calls"),
    [
        (f"{CALL}\n{CALL}", 2),
        (CALL.removesuffix("\n</tool_call>"), 1),
        (CALL.replace("Köln", "</tool_call>"), 1),
        (CALL.replace("}}", "}"), 0),
        (CALL.replace("weather", "climate"), 0),
        (CALL.replace('"Köln"', "NaN"), 0),
        (CALL.replace('"Köln"', "1e999"), 0),
        (CALL.replace("Köln", "\\ud800"), 0),
        (f"a <tool_ {'<tool_call>' * 3}", 0),
    ],
)
def test_what_is_no_call_stays_text_and_streams_agree(fake, said, calls):
    fake.engine.script = [said]
    reply = chat(fake, tools=TOOLS, max_tokens=90).choices[0]
    assert len(reply.message.tool_calls or []) == calls
    assert reply.message.content == (None if calls else said)
    chunks = list(chat(fake, tools=TOOLS, max_tokens=90, stream=True))
    assert text_of(chunks) == (reply.message.content or "")
    heads = [p.index for c in chunks for p in c.choices[0].delta.tool_calls or [] if p.id]
    assert heads == list(range(calls))
    single = chat(fake, tools=TOOLS, max_tokens=90, parallel_tool_calls=False).choices[0]
    assert len(single.message.tool_calls or []) == min(calls, 1)


def test_a_named_function_is_the_only_one_in_the_grammar(fake):
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, others in ((named, False), ("required", True)):
        fake.post(body(fake, tools=TOOLS, tool_choice=choice)).raise_for_status()
        assert "weather" in fake.engine.requests[-1].grammar
        assert ("stop_all" in fake.engine.requests[-1].grammar) is others
    fake.post(body(fake, tools=TOOLS, tool_choice="none")).raise_for_status()
    assert (fake.engine.requests[-1].grammar, len(fake.engine.requests[-1].messages)) == (None, 1)


@pytest.mark.parametrize(("effort", "number"), [("low", 50), ("minimal", 25), ("max", 100), (37, 37)])
def test_effort_is_a_line_of_the_prompt_and_a_parameter(fake, effort, number):
    messages = [{"role": "system", "content": "Be kind.\n"}, *HELLO]
    fake.post(body(fake, messages=messages, reasoning_effort=effort)).raise_for_status()
    asked = fake.engine.requests[-1]
    assert asked.messages[0] == ChatTurn("system", f"Reasoning effort: {number} of 100.\nBe kind.\n")
    assert asked.sampling.effort == number


def test_fields_reach_the_engine_and_harmless_ones_do_not_matter(fake):
    harmless = {"store": True, "metadata": {"a": "b"}, "frequency_penalty": 0, "logit_bias": {}, "tools": None}
    ours = {"user": "ann", "priority": -3, "ignore_eos": True, "return_raw_logprobs": True, "stop": "END"}
    answer = fake.post(body(fake, **harmless, **ours, logprobs=True, top_logprobs=1)).json()
    asked = fake.engine.requests[-1]
    assert (asked.owner, asked.priority, asked.messages) == ("ann", 3, (ChatTurn("user", HELLO[0]["content"]),))
    assert asked.sampling.stop == ("END",)
    assert asked.sampling.ignore_eos
    assert (asked.sampling.temperature, asked.sampling.top_p) == (1.0, 1.0)
    assert answer["choices"][0]["raw_logprobs"] == [-0.75] * answer["usage"]["completion_tokens"]
    assert answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["bytes"] == []
    assert fake.engine.released == {asked.conversation: 1}


@pytest.mark.parametrize(
    "said", [f"{CALL} \n Done. \n", f"a\n{CALL}\n<tool_b {CALL}", f" {CALL}<tool_call>{CALL}", "a < b\n"]
)
def test_calls_are_read_alike_in_any_pieces(said):
    found = {}
    for size in (1, 2, 7, len(said)):
        reader = CallReader({"weather"})
        parts = [p for at in range(0, len(said), size) for p in reader.feed(said[at : at + size])] + reader.end()
        text = "".join(part for part in parts if isinstance(part, str))
        found[size] = text, [part for part in parts if isinstance(part, Call)]
    assert len({str(one) for one in found.values()}) == 1
    if said.endswith("Done. \n"):
        assert found[1][0] == "Done. \n"


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"model": None}, 400, "model"),
        ({"temperature": "1"}, 400, "temperature"),
        ({"temperature": 1e-30}, 400, None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content"),
        ({"messages": [*HELLO, {"role": "user"}]}, 400, "messages[1]"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "x"}]}, 400, None),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0]"),
        ({"stop": ["a"] * 5}, 400, "stop"),
        ({"messages": "hello"}, 400, "messages"),
        ({"n": 9}, 400, "n"),
        ({"n": 4}, 400, "n"),
        ({"seed": 2**63}, 400, "seed"),
        ({"top_logprobs": 2}, 400, None),
        ({"reasoning_effort": "huge"}, 400, "reasoning_effort"),
        ({"reasoning_effort": 0}, 400, "reasoning_effort"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty"),
        ({"sead": 3}, 400, "sead"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "tools[0].function.name"),
        ({"tool_choice": "required"}, 400, None),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, 400, None),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, 400, None),
        ({"stream_options": {"include_usage": True}}, 400, None),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, 400, "structured_outputs"),
    ],
)
def test_a_wrong_field_is_named(fake, changes, status, param):
    answer = fake.post(body(fake, **changes))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert error["type"] == "invalid_request_error"
    assert (param or "").partition("[")[0] in error["message"]
    assert fake.engine.requests == []


def test_other_errors_have_the_same_shape(fake):
    answers = {
        400: fake.post(b"{nope"),
        404: fake.post({}, "/nothing"),
        405: fake.get("/v1/chat/completions"),
        413: fake.post(b'"' + b"x" * MAX_BODY + b'"'),
        415: fake.post({}, headers={"Content-Type": "text/plain"}),
    }
    for status, answer in answers.items():
        assert answer.status_code == status
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert fake.post(b"[]").status_code == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"), [(EngineRefused("no"), 400), (ContextFull("full"), 400), (RuntimeError("secret"), 500)]
)
def test_failures_of_the_engine_come_before_a_stream(fake, error, status, stream):
    fake.engine.script = [error]
    answer = fake.post(body(fake, stream=stream))
    assert answer.status_code == status
    assert "secret" not in answer.text


def test_health_tells_of_a_failed_engine(fake):
    assert fake.get("/health").json() == {"status": "ok"}
    fake.engine.script = [EngineError("the engine failed: out of memory"), "hello"]
    assert fake.post(body(fake)).status_code == 500
    assert fake.get("/health").status_code == 503
    assert fake.post(body(fake)).status_code == 200
    assert fake.get("/health").status_code == 200


def test_models_and_metrics(fake):
    client = fake.client
    assert [m.id for m in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").max_model_len == fake.engine.context
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("a/b")
    before = figures(fake)
    chat(fake)
    fake.post(body(fake, n=9))
    after = figures(fake)
    for word in ("ok", "refused"):
        assert after[FINISHED.format(word)] == before.get(FINISHED.format(word), 0) + 1
    assert after["trajmill_request_seconds_count"] == before["trajmill_request_seconds_count"] + 1
    assert after['trajmill_first_token_seconds_bucket{le="+Inf"}'] == after["trajmill_first_token_seconds_count"]
    assert (after['trajmill_limit{of="max_queue"}'], after["trajmill_replies_inside"]) == (1, 0)


def figures(server: Live) -> dict[str, float]:
    lines = [line for line in server.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_overload_is_429_and_says_when_to_come_back(fake):
    fake.call(fake.engine.go.clear)

    async def crowd():
        async with openai.AsyncOpenAI(base_url=fake.url, api_key="none", max_retries=0) as client:
            ask = lambda: client.chat.completions.create(model="fake", messages=HELLO)  # noqa: E731
            inside = [asyncio.create_task(ask()) for _ in range(3)]  # two places, one may wait
            await asyncio.to_thread(fake.until, lambda: fake.engine.running == 3)
            with pytest.raises(openai.RateLimitError) as caught:
                await ask()
            fake.loop.call_soon_threadsafe(fake.engine.go.set)
            return caught.value, await asyncio.gather(*inside), await ask()

    error, inside, later = asyncio.run(crowd())
    assert int(error.response.headers["Retry-After"]) >= 1
    assert error.code == "overloaded"
    assert {reply.choices[0].message.content for reply in [*inside, later]} == {"hello"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_request(fake, stream):
    fake.call(fake.engine.go.clear)

    async def leave():
        async with httpx.AsyncClient() as client:
            asked = body(fake, stream=stream, n=2)
            async with asyncio.timeout(20):
                task = asyncio.create_task(client.post(fake.url + "/chat/completions", json=asked, timeout=20))
                await asyncio.to_thread(fake.until, lambda: fake.engine.running == 2)
                task.cancel()
                await asyncio.wait([task])

    asyncio.run(leave())
    fake.until(lambda: fake.engine.running == 0)
    fake.until(lambda: len(fake.engine.released) == 2)
    assert len(fake.engine.cancelled) == 2
    fake.call(fake.engine.go.set)
    assert fake.post(body(fake, n=3)).status_code == 200  # all three places are free
    assert figures(fake)[FINISHED.format("cancelled")] >= 1


def test_a_token_is_needed_wherever_one_is_set(tokenizer):
    with live(FakeEngine(tokenizer), token=TOKEN) as server:
        assert chat_with(server, TOKEN).choices[0].message.content == "hello"
        with pytest.raises(openai.AuthenticationError):
            chat_with(server, TOKEN[:-1])
        for path in ("/health", "/metrics", "/v1/models", "/nothing"):
            assert server.get(path).status_code == 401


def chat_with(server: Live, token: str):
    return server.client.with_options(api_key=token).chat.completions.create(model="fake", messages=HELLO)


def test_without_a_token_other_names_are_refused(fake):
    refused = fake.post(body(fake), headers={"Host": "evil.example:80"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "wrong_host")
    for host in ("localhost:1", "127.0.0.1", "[::1]:8000"):
        assert fake.get("/health", headers={"Host": host}).status_code == 200


def test_where_tokens_come_from(monkeypatch):
    assert token_from(None, "127.0.0.1") is None
    monkeypatch.setenv("A_TOKEN", TOKEN)
    assert token_from("A_TOKEN", "0.0.0.0") == TOKEN
    monkeypatch.setenv("A_TOKEN", "short")
    for variable, host in ((None, "0.0.0.0"), ("A_TOKEN", "127.0.0.1"), ("UNSET_TOKEN", "::1")):
        with pytest.raises(ConfigError):
            token_from(variable, host)


def test_the_command_serves_until_a_signal(tokenizer, tmp_path):
    folder = write_llama(tmp_path / "small", 0)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer._definition))
    options = ["--port", "0", "--context", "256", "--max-batch", "2", "--threads", "1", "--kv-megabytes", "16"]
    command = [sys.executable, "-m", "pipelines.cli", "serve", str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline()
            url = said.split()[-1]
            assert said == f"serving small on {url}\n"
            asked = {"model": "small", "messages": HELLO, "max_tokens": 3, "ignore_eos": True}
            assert httpx.post(f"{url}/chat/completions", json=asked).json()["usage"]["completion_tokens"] == 3
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()


NAMES = ["model", "messages", "temperature", "tools", "tool_choice", "stop", "n", "response_format", "seed", "stream"]
NAMES += ["structured_outputs", "reasoning_effort", "max_tokens", "prompt", "logprobs", "logit_bias", "stream_options"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("fake"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*NAMES, "role", "content", "type", "function", "name"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None)
@given(
    raw=st.binary(max_size=40)
    | st.dictionaries(st.sampled_from(NAMES), JSON).map(lambda d: json.dumps({"model": "fake", "messages": HELLO} | d)),
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions"]),
)
def test_no_body_breaks_the_server(tokenizer, raw, path):
    async def ask():
        transport = httpx.ASGITransport(make_app(FakeEngine(tokenizer), max_queue=8))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post(path, content=raw, headers={"Content-Type": "application/json"})

    answer = asyncio.run(ask())
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]
