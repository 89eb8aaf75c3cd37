"""Interruption at a token: what goes on elsewhere, later, or under other weights is what would have been."""

import asyncio
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import small_engine, write_llama

from agents.engine.base import ChatTurn, GenerateRequest, Sampling
from agents.engine.paused import load_paused
from schemas.errors import ConfigError, EngineError, EngineRefused, GenerationPaused, InputError

STORY = (ChatTurn("user", "Tell me a story about a tall clock and a wet winter in the town."),)
GRAMMAR = 'start: "[" /[a-z ]{1,30}/ ("," /[a-z ]{1,30}/)* "]"'
KINDS = {
    "greedy": Sampling(60, temperature=0, ignore_eos=True),
    "sampled": Sampling(60, temperature=1.0, top_p=0.9, seed=11, ignore_eos=True, raw_logprobs=True, top_logprobs=2),
    "grammar": Sampling(60, temperature=0.8, seed=5),
}


def request(kind: str, name: str = "story") -> GenerateRequest:
    return GenerateRequest(STORY, name, KINDS[kind], grammar=GRAMMAR if kind == "grammar" else None)


async def paused_after(engine, asked: GenerateRequest, tokens: int):
    """Start the request, pause it when at least `tokens` were sampled, and give its state."""
    seen, enough = 0, asyncio.Event()

    def count(chunk):
        nonlocal seen
        seen += len(chunk.ids)
        if seen >= tokens:
            enough.set()

    task = asyncio.create_task(engine.generate(asked, count))
    await enough.wait()
    state = await engine.pause(asked.conversation)
    with pytest.raises(GenerationPaused):
        await task
    return state


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("small"), seed=3)


@pytest.fixture
def small(folder, tokenizer):
    engine = small_engine(folder, tokenizer)
    yield engine
    asyncio.run(engine.close())


def same(a, b) -> bool:
    return replace(a, cached_tokens=0) == replace(b, cached_tokens=0)


@pytest.mark.parametrize("kind", KINDS)
def test_continuing_gives_what_never_pausing_gives(small, tmp_path, kind):
    async def play():
        whole = await small.generate(request(kind))
        small.release("story")
        pieces = []
        state = await paused_after(small, request(kind), 7)
        state.save(tmp_path / "state")
        again = load_paused(tmp_path / "state")
        prefilled = small.metrics().prefilled
        continued = await small.continue_paused(again, pieces.append)
        return whole, state, continued, pieces, small.metrics().prefilled - prefilled

    whole, state, continued, pieces, prefilled = asyncio.run(play())
    assert same(continued, whole)
    assert prefilled == 0, "no token is computed twice"
    before = len(state.ids) - state.prompt
    assert 7 <= before < len(whole.output_ids)
    assert tuple(token for piece in pieces for token in piece.ids) == whole.output_ids[before:]
    assert whole.text.endswith("".join(piece.text for piece in pieces))


def test_a_pause_frees_its_blocks_and_a_prompt_may_be_paused_too(small):
    async def play():
        task = asyncio.create_task(small.generate(request("greedy")))
        await asyncio.sleep(0)
        state = await small.pause("story")
        with pytest.raises(GenerationPaused):
            await task
        used = small.metrics()
        whole = await small.generate(request("greedy", "other"))
        return state, used, whole, await small.continue_paused(state)

    state, used, whole, continued = asyncio.run(play())
    assert (used.running, used.waiting) == (0, 0)
    assert len(state.ids) - state.prompt <= 1
    assert continued.output_ids == whole.output_ids


def test_another_process_goes_on_with_the_same_tokens(small, folder, tmp_path):
    async def play():
        whole = await small.generate(request("sampled"))
        state = await paused_after(small, request("sampled", "away"), 20)
        return whole, state

    whole, state = asyncio.run(play())
    state.save(tmp_path / "state")
    code = (
        "import asyncio, sys; from pathlib import Path; from small_models import small_engine;"
        "from agents.engine.paused import load_paused; from agents.engine.tokenizer import load_tokenizer;"
        "engine = small_engine(Path(sys.argv[1]), load_tokenizer('smollm2'));"
        "result = asyncio.run(engine.continue_paused(load_paused(Path(sys.argv[2]))));"
        "print(list(result.output_ids), list(result.logprobs), engine.metrics().prefilled)"
    )
    here = Path(__file__).parent
    ended = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{here}:{here.parents[1]}", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
    )
    assert ended.stdout.strip() == f"{list(whole.output_ids)} {list(whole.logprobs)} 0"


def test_after_a_swap_a_paused_request_goes_on_without_prefill(small, tokenizer, tmp_path):
    other = write_llama(tmp_path / "other", seed=4)

    async def play():
        old = await small.generate(request("greedy", "old"))
        state = await paused_after(small, request("greedy"), 9)
        await small.swap_weights(str(other), "v2")
        prefilled = small.metrics().prefilled
        continued = await small.continue_paused(state)
        return (
            old,
            state,
            continued,
            small.metrics().prefilled - prefilled,
            await small.generate(request("greedy", "n")),
        )

    old, state, continued, prefilled, new = asyncio.run(play())
    before = len(state.ids) - state.prompt
    assert prefilled == 0
    assert continued.versions == (("v1", before), ("v2", 60 - before))
    assert continued.output_ids[:before] == old.output_ids[:before]
    assert continued.output_ids != old.output_ids
    # A request that begins after the swap sees nothing of the old weights, not even the prompt's keys and values.
    assert (new.cached_tokens, new.versions) == (0, (("v2", 60),))
    fresh = small_engine(other, tokenizer, "v2")
    assert same(asyncio.run(fresh.generate(request("greedy", "n"))), new)
    asyncio.run(fresh.close())


def test_a_swap_in_mid_reply_changes_only_what_follows(small, tmp_path):
    other = write_llama(tmp_path / "other", seed=4)

    async def play():
        old = await small.generate(request("greedy", "old"))
        some = asyncio.Event()
        task = asyncio.create_task(small.generate(request("greedy"), lambda chunk: some.set()))
        await some.wait()
        await small.swap_weights(str(other), "v2")
        return old, await task

    old, mixed = asyncio.run(play())
    assert [name for name, _ in mixed.versions] in (["v1", "v2"], ["v1"])
    before = mixed.versions[0][1]
    assert mixed.output_ids[:before] == old.output_ids[:before]
    assert sum(count for _, count in mixed.versions) == 60


@pytest.mark.parametrize(
    "lie",
    [
        {"ids": (1, 2, 99_999)},
        {"ids": ()},
        {"prompt": 0},
        {"prompt": 500},
        {"computed": 400},
        {"computed": 1},
        {"computed": -3},
        {"limit": 3},
        {"limit": 10**9},
        {"context": 10**6},
        {"logprobs": ()},
        {"window_at": (0,)},
        {"ids": (1, 2.0, 3)},
        {"priority": None},
        {"owner": [1]},
        {"sampling": Sampling(60, temperature=math.nan)},
        {"sampling": Sampling(60, top_logprobs=-1)},
        {"sampling": Sampling("x")},
        {"full": torch.zeros(2, 1, 640, dtype=torch.uint8)},
        {"full": torch.zeros(1, 3, 7)},
    ],
    ids=str,
)
def test_a_state_that_lies_ends_its_own_request_alone(small, lie):
    async def play():
        state = await paused_after(small, request("greedy"), 3)
        with pytest.raises(EngineRefused):
            await small.continue_paused(replace(state, **lie))
        return await small.continue_paused(state), await small.generate(request("greedy", "whole"))

    continued, whole = asyncio.run(play())
    assert continued.output_ids == whole.output_ids
    small._workers[0].scheduler.audit()


def test_a_state_without_numbers_ends_its_own_request_alone(small):
    async def play():
        state = await paused_after(small, request("greedy"), 3)
        broken = replace(state, full=torch.full_like(state.full, 127))
        beside = asyncio.create_task(small.generate(request("sampled", "beside")))
        with pytest.raises(EngineError, match="finite"):
            await small.continue_paused(broken)
        # The blocks that held it are used again, and nothing of it is left to whoever gets them.
        after = [await small.generate(request("sampled", f"after {i}")) for i in range(3)]
        return await beside, after

    beside, after = asyncio.run(play())
    assert {one.output_ids for one in after} == {beside.output_ids}


def test_who_waits_for_a_pause_may_go_away(small):
    async def play():
        task = asyncio.create_task(small.generate(request("greedy")))
        await asyncio.sleep(0)
        pausing = asyncio.create_task(small.pause("story"))
        await asyncio.sleep(0)
        pausing.cancel()
        await asyncio.gather(task, pausing, return_exceptions=True)
        return await small.generate(request("greedy", "next"))

    assert len(asyncio.run(play()).output_ids) == 60


def test_states_that_do_not_fit_are_refused(small, tokenizer, folder, tmp_path):
    async def play():
        state = await paused_after(small, request("greedy"), 3)
        with pytest.raises(EngineRefused, match="keys and values"):
            await small.continue_paused(replace(state, layout="another"))
        with pytest.raises(EngineRefused, match="no request"):
            await small.pause("story")
        with pytest.raises(ConfigError):
            await small.swap_weights("smollm2", "v2")
        return state

    state = asyncio.run(play())
    state.save(tmp_path / "state")
    (tmp_path / "torn").write_bytes((tmp_path / "state").read_bytes()[:-100])
    (tmp_path / "text").write_text("hello")
    for name in ("torn", "text", "absent"):
        with pytest.raises(InputError, match=name):
            load_paused(tmp_path / name)
    assert not list(tmp_path.glob(".*"))
