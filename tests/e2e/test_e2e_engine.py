"""The embedded model through the whole line: what the shards' ids are, and that they are what the model saw."""

import itertools
from pathlib import Path

import pytest
from small_run import LOGS, sql, trajmill

from agents.engine.base import ChatTurn
from agents.engine.tokenizer import load_tokenizer
from pipelines import store
from pipelines.rows import token_row
from schemas.sample import Sample

ENGINE = """
seed: 3
tasks: {per_family: 1}
sandbox: {accept_process_memory_limit: true}
score: {require_pass: false, max_parse_error_share: 1.0}
rollout:
  plays:
    - {policy: engine, efforts: [50, 100], max_episodes: 8, max_turns: 2, max_reply_tokens: 192}
"""


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> tuple[Path, list[Sample]]:
    folder = tmp_path_factory.mktemp("engine")
    (folder / "engine.yaml").write_text(ENGINE)
    trajmill("run", str(LOGS), "--out", str(folder / "run"), "--config", str(folder / "engine.yaml"))
    return folder / "run", list(store.read_records(folder / "run", "samples", Sample))


def test_both_scaffolds_layouts_and_efforts_are_played(samples) -> None:
    run, _ = samples
    cells = sql(run, "select distinct scaffold, layout, effort from episodes")
    assert len(cells) == 8
    assert sql(run, "select count(*) n from episodes where policy = 'engine' and model = 'smollm2'") == [{"n": 8}]


def test_the_ids_are_what_the_chat_template_gives_and_what_the_model_wrote(samples) -> None:
    tokenizer = load_tokenizer("smollm2")
    checked = 0
    for sample in samples[1]:
        chat = [ChatTurn(m.role, m.content) for m in sample.messages]
        starts = [0, *(turn.message + 1 for turn in sample.turns)]
        closed = True
        for start, turn in zip(starts, sample.turns, strict=False):
            wanted = tokenizer.chat_prefix(chat[start : turn.message], first=start == 0, closed=closed)
            assert turn.prompt_ids == wanted
            assert tokenizer.decode(turn.output_ids) == chat[turn.message].content
            assert len(turn.logprobs) == len(turn.output_ids)
            assert all(logprob <= 0 for logprob in turn.logprobs)
            closed = turn.output_ids[-1] == tokenizer.eos_id
            checked += 1
    assert checked >= 8


def test_a_token_row_is_their_concatenation(samples) -> None:
    tokenizer = load_tokenizer("smollm2")
    trained = [s for s in samples[1] if any(s.trained)]
    assert trained
    for sample in trained:
        row = token_row(sample, tokenizer)
        assert row.input_ids == list(
            itertools.chain.from_iterable([*turn.prompt_ids, *turn.output_ids] for turn in sample.turns)
        )
        for mask, logprob in zip(row.loss_mask, row.logprobs, strict=True):
            assert not mask or logprob is not None
        assert row.policy_version.startswith("smollm2@")


def test_efforts_bound_the_replies(samples) -> None:
    run, _ = samples
    longest = sql(
        run,
        "select effort, max(len(turn.output_ids)) n from (select effort, unnest(turns) as turn from samples) "
        "group by effort order by effort",
    )
    assert [row["effort"] for row in longest] == [50, 100]
    assert longest[0]["n"] <= 96 < longest[1]["n"] <= 192
