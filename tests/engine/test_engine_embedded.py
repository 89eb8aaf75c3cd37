"""The embedded engine with the real small model: exactness, state between turns, batching, ends and errors."""

import asyncio
import json

import pytest
import torch

from agents.engine.base import ChatTurn, GenerateRequest, Sampling
from agents.engine.grammar import tool_call_grammar
from schemas.errors import EngineRefused, EngineUnavailable
from schemas.recipe import EngineSettings

SYSTEM = ChatTurn("system", "You are a helpful assistant who answers in short sentences.")


def request(name: str, text: str, *, context=(), replies=(), grammar=None, **sampling) -> GenerateRequest:
    messages = [SYSTEM, *replies, ChatTurn("user", text)]
    return GenerateRequest(
        tuple(messages), name, Sampling(**{"max_tokens": 24, "temperature": 0} | sampling), tuple(context), grammar
    )


def ask(engine, *requests):
    async def all_of_them():
        return await asyncio.gather(*[engine.generate(r) for r in requests])

    return asyncio.run(all_of_them())


def test_it_knows_the_capital_of_france(engine):
    (reply,) = ask(engine, request("france", "What is the capital of France?"))
    assert "Paris" in reply.text
    assert reply.finish_reason == "stop"
    assert reply.output_ids[-1] == engine.tokenizer.eos_id
    assert engine.tokenizer.decode(reply.output_ids) == reply.text
    assert reply.policy_version.startswith("smollm2@")


def test_the_batch_around_a_request_does_not_change_it(engine):
    asked = [
        request(f"batch{i}", text, temperature=0.8, seed=i)
        for i, text in enumerate(["Name a fruit.", "Count to five.", "Say hello to Ann and Bob.", "Why is it dark?"])
    ]
    together = ask(engine, *asked)
    for r in asked:
        engine.release(r.conversation)
    alone = [ask(engine, r)[0] for r in asked]
    if torch.backends.cpu.get_cpu_capability() != "AVX2":
        pytest.skip("row padding is measured for AVX2 kernels only; elsewhere rounding may tip a draw")
    assert [r.output_ids for r in together] == [r.output_ids for r in alone]
    assert [r.logprobs for r in together] == [r.logprobs for r in alone]


def test_seeds_decide(engine):
    replies = ask(
        engine, *[request(f"seed{i}", "Tell me a story.", temperature=1.0, seed=s) for i, s in enumerate([1, 1, 2, 3])]
    )
    assert replies[0].output_ids == replies[1].output_ids
    assert len({r.output_ids for r in replies}) == 3
    assert all(len(r.logprobs) == len(r.output_ids) and max(r.logprobs) <= 0 for r in replies)


def test_a_next_turn_continues_what_was_sampled(engine):
    (first,) = ask(engine, request("turns", "Name three colours.", temperature=0.7, seed=4))
    context = first.prompt_ids + first.output_ids
    following = request(
        "turns", "And three animals.", context=context, replies=[ChatTurn("user", "x"), ChatTurn("assistant", "y")]
    )
    (second,) = ask(engine, following)
    assert second.cached_tokens == len(context) - 1
    # What the messages say of the past is not looked at: ids rule. The same conversation computed anew agrees.
    engine.release("turns")
    other = GenerateRequest(following.messages, "elsewhere", following.sampling, following.context_ids)
    (anew,) = ask(engine, other)
    assert (anew.prompt_ids, anew.output_ids) == (second.prompt_ids, second.output_ids)
    closing = [] if context[-1] == engine.tokenizer.eos_id else [engine.tokenizer.eos_id]
    message = engine.tokenizer.chat_prefix([ChatTurn("user", "And three animals.")], first=False, closed=True)
    assert list(second.prompt_ids) == closing + message


def test_a_reply_cut_short_is_closed_before_the_next_turn(engine):
    (first,) = ask(engine, request("cut", "Tell me a long story.", max_tokens=5))
    assert (first.finish_reason, len(first.output_ids)) == ("length", 5)
    (second,) = ask(
        engine,
        request(
            "cut", "Go on.", context=first.prompt_ids + first.output_ids, replies=[ChatTurn("assistant", first.text)]
        ),
    )
    assert second.prompt_ids[0] == engine.tokenizer.eos_id


def test_stop_strings_cut_the_text_and_not_the_ids(engine):
    (whole,) = ask(engine, request("whole", "What is the capital of France?"))
    (cut,) = ask(engine, request("stop", "What is the capital of France?", stop=("France", "never")))
    assert cut.text == whole.text[: whole.text.index("France")]
    assert cut.finish_reason == "stop"
    assert "France" in engine.tokenizer.decode(cut.output_ids)
    assert cut.output_ids == whole.output_ids[: len(cut.output_ids)]


def test_effort_limits_the_reply(engine):
    (reply,) = ask(engine, request("effort", "Write a long poem.", max_tokens=40, effort=50, temperature=0.7))
    assert len(reply.output_ids) <= 20


def test_constrained_replies_parse(engine):
    schema = {
        "type": "object",
        "properties": {"command": {"enum": ["ls", "pwd", "cat notes.txt"]}},
        "required": ["command"],
        "additionalProperties": False,
    }
    grammar = tool_call_grammar([{"name": "bash", "parameters": schema}], "<tool_call>", "</tool_call>", 40)
    asked = [
        request(f"call{i}", "List the files.", grammar=grammar, temperature=1.0, seed=i, max_tokens=120)
        for i in range(6)
    ]
    for reply in ask(engine, *asked):
        assert reply.finish_reason == "stop"
        call = reply.text.split("<tool_call>\n")[1].split("\n</tool_call>")[0]
        assert json.loads(call)["arguments"]["command"] in ("ls", "pwd", "cat notes.txt")


def test_a_cancelled_request_frees_its_place(engine):
    async def cancel():
        tasks = [
            asyncio.create_task(engine.generate(request(f"gone{i}", "Write a book.", max_tokens=700, temperature=1.0)))
            for i in range(8)
        ]
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The batch has room for eight: this one runs at once only if those are gone.
        reply = await asyncio.wait_for(engine.generate(request("next", "What is two plus two?")), 30)
        return tasks, reply

    tasks, reply = asyncio.run(cancel())
    assert all(task.cancelled() for task in tasks)
    assert reply.text
    assert not any(worker.load for worker in engine._workers)


@pytest.mark.parametrize(
    "wrong",
    [
        GenerateRequest((SYSTEM, ChatTurn("assistant", "I am done.")), "w", Sampling(5)),
        GenerateRequest((), "w", Sampling(5)),
        request("w", "word " * 2000),
        request("w", "x", max_tokens=0),
        request("w", "x", context=(1, 2, 3)),
        request("w", "x", grammar="start: nowhere"),
    ],
)
def test_wrong_requests_are_refused(engine, wrong):
    with pytest.raises(EngineRefused):
        ask(engine, wrong)


def test_closing_ends_what_is_in_flight(weights_file):
    from agents.engine.load import load_embedded

    engine = load_embedded(EngineSettings(max_batch=1, context=512))

    async def close_early():
        tasks = [
            asyncio.create_task(engine.generate(request(f"c{i}", "Write a book.", max_tokens=400, temperature=1.0)))
            for i in range(3)
        ]
        await asyncio.sleep(0.2)
        await engine.close()
        await engine.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(outcome, EngineUnavailable) for outcome in asyncio.run(close_early()))
    with pytest.raises(EngineUnavailable, match="stopped"):
        ask(engine, request("late", "x"))
