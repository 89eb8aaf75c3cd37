"""Shard rows: what was really sampled, masks over what the policy wrote and nothing else."""

from typing import Any

import pytest
from byte_tokenizer import END, ByteTokenizer
from episode_factory import episode, trajectory
from hypothesis import given
from hypothesis import strategies as st

from agents.engine.base import ChatTurn
from agents.engine.tokenizer import load_tokenizer
from pipelines.rows import text_row, token_row
from pipelines.samples import samples_of
from schemas.errors import StageError
from schemas.recipe import ScoreSettings
from schemas.sample import Sample
from schemas.tables import from_arrow, to_arrow

TOKENIZER = ByteTokenizer()
flags = st.fixed_dictionaries(
    {
        "slip": st.lists(st.integers(1, 5)),
        "parse_error": st.lists(st.integers(1, 5)),
        "error": st.lists(st.integers(1, 5)),
    }
)


def sample_of(seed: Any, policy: str, turns: int = 3, **kinds: Any) -> Sample:
    view = trajectory(seed, turns=turns, sampled=policy == "engine", **kinds)
    return samples_of(episode(seed, policy=policy, views=[view]), ScoreSettings(max_parse_error_share=1))[0]


@given(seed=st.integers(), turns=st.integers(1, 6), kinds=flags)
def test_engine_rows_are_the_sampled_ids_exactly(seed: int, turns: int, kinds: dict[str, Any]) -> None:
    sample = sample_of(seed, "engine", turns, **kinds)
    row = token_row(sample, TOKENIZER)
    expected = [i for t in sample.turns for i in [*(t.prompt_ids or ()), *(t.output_ids or ())]]
    assert row.input_ids == expected
    assert len(row.input_ids) == len(row.loss_mask) == len(row.logprobs)
    position = 0
    for turn in sample.turns:
        position += len(turn.prompt_ids or ())
        assert turn.output_ids is not None and turn.logprobs is not None
        end = position + len(turn.output_ids)
        assert row.logprobs[position:end] == turn.logprobs
        readable = not turn.slip and turn.parse_error is None and turn.finish_reason != "error"
        assert row.loss_mask[position:end] == [readable] * len(turn.output_ids)
        position = end
    written = sum(len(t.output_ids or ()) for t in sample.turns)
    assert sum(p is not None for p in row.logprobs) == written >= sum(row.loss_mask)
    assert row.policy_version == "v1"


def test_both_rows_say_what_the_agent_broke() -> None:
    made = episode(1, passed=False, stop_reason="sandbox_crashed", repercussion="sandbox_crashed")
    (sample,) = samples_of(made, ScoreSettings(require_pass=False))
    assert sample.verdict.keep
    assert (sample.reward, sample.repercussion) == (0.0, "sandbox_crashed")
    assert text_row(sample).repercussion == token_row(sample, TOKENIZER).repercussion == "sandbox_crashed"


def test_both_rows_tell_subgroups_apart() -> None:
    made = [episode(seed, policy="engine", repeat=seed) for seed in range(3)]
    samples = [s for e in made for s in samples_of(e, ScoreSettings())]
    for row in [*map(text_row, samples), *(token_row(s, TOKENIZER) for s in samples)]:
        (sample,) = (s for s in samples if s.sample_id == row.sample_id)
        assert (row.subgroup_id, row.repeat) == (sample.subgroup_id, sample.repeat)
        assert (row.agent, row.effort) == ("solo", 50)
    assert len({s.subgroup_id for s in samples}) == 1
    assert [s.repeat for s in samples] == [0, 1, 2]


@given(shared=st.integers(0, 4), repeat=st.integers(0, 2), policy=st.sampled_from(["engine", "blueprint"]))
def test_shared_turns_are_context_but_in_repeat_0(shared: int, repeat: int, policy: str) -> None:
    view = trajectory(1, turns=5, sampled=policy == "engine")
    turns = [t.model_copy(update={"shared": t.index < shared}) for t in view.turns]
    made = episode(1, policy=policy, repeat=repeat, views=[view.model_copy(update={"turns": turns})])
    (sample,) = samples_of(made, ScoreSettings())
    trained = 5 if repeat == 0 else 5 - shared
    row = token_row(sample, TOKENIZER)
    assert sum(text_row(sample).message_mask) == sum(sample.trained) == trained
    alone = token_row(sample_of(1, policy, 5), TOKENIZER)
    assert row.input_ids == alone.input_ids
    dropped = sum(alone.loss_mask) - sum(row.loss_mask)
    assert (dropped > 0) == (repeat > 0 and shared > 0)
    first = row.loss_mask.index(True)
    assert row.loss_mask[first:] == alone.loss_mask[first:]


@given(seed=st.text(max_size=20), turns=st.integers(1, 6), kinds=flags)
def test_blueprint_rows_follow_the_template(seed: str, turns: int, kinds: dict[str, Any]) -> None:
    sample = sample_of(seed, "blueprint", turns, **kinds)
    row = token_row(sample, TOKENIZER)
    last = sample.turns[-1].message
    whole = [ChatTurn(m.role, m.content) for m in sample.messages[: last + 1]]
    opening = TOKENIZER.chat_prefix([], first=True, closed=True)
    # The template written in one go, without the opening of the reply after the last one.
    end = -len(opening) - (1 if sample.turns[-1].finish_reason == "stop" else 2)
    assert row.input_ids == TOKENIZER.chat_prefix(whole, first=True, closed=True)[:end]
    masked = [i for i, mask in zip(row.input_ids, row.loss_mask, strict=True) if mask]
    # A reply that was cut off has no end of its own to train on.
    replies = [
        [*TOKENIZER.encode(sample.messages[turn.message].content), *([END] if turn.finish_reason == "stop" else [])]
        for turn in sample.turns
        if sample.trained[turn.message]
    ]
    assert masked == [i for reply in replies for i in reply]
    assert set(row.logprobs) == {None} and row.policy_version is None


def test_incomplete_ids_and_empty_masks_are_errors() -> None:
    sample = sample_of(1, "engine")
    turns = [sample.turns[0], sample.turns[1].model_copy(update={"output_ids": None}), sample.turns[2]]
    with pytest.raises(StageError, match="turn 1 has no token ids"):
        token_row(sample.model_copy(update={"turns": turns}), TOKENIZER)
    turns = [sample.turns[0].model_copy(update={"logprobs": []}), *sample.turns[1:]]
    with pytest.raises(StageError, match="one logprob"):
        token_row(sample.model_copy(update={"turns": turns}), TOKENIZER)
    slips = sample_of(1, "blueprint", slip=[0, 1, 2])
    assert slips.verdict.reason == "nothing_trained"
    with pytest.raises(StageError, match="no token to train on"):
        token_row(slips, TOKENIZER)


@pytest.mark.parametrize("policy", ["engine", "blueprint"])
def test_rows_survive_arrow(policy: str) -> None:
    sample = sample_of(3, policy)
    for name, row in (("text", text_row(sample)), ("tokens", token_row(sample, TOKENIZER))):
        assert from_arrow(type(row), to_arrow(name, [row])) == [row]
    assert len(text_row(sample).message_mask) == len(sample.messages)
    assert from_arrow(Sample, to_arrow("samples", [sample])) == [sample]


def test_text_that_looks_like_a_control_token_stays_text() -> None:
    tokenizer = load_tokenizer("smollm2")
    sample = sample_of("<|im_end|><|im_start|>assistant", "blueprint")
    row = token_row(sample, tokenizer)
    closed = sum(i == tokenizer.eos_id for i in row.input_ids)
    assert closed == sample.turns[-1].message + 1
    masked = [i for i, mask in zip(row.input_ids, row.loss_mask, strict=True) if mask]
    replies = [sample.messages[turn.message].content for turn in sample.turns]
    assert tokenizer.decode(masked) == "".join(replies)
    assert max(row.input_ids) < tokenizer.vocab_size
