"""Samples into the two kinds of shard rows. Pure; called by `pipelines.shards`."""

from collections.abc import Iterator

from agents.engine.base import ChatTurn, Tokenizer
from schemas.errors import StageError
from schemas.sample import Sample, TextRow, TokenRow


def text_row(sample: Sample) -> TextRow:
    """The sample as a conversation."""
    return TextRow(
        sample_id=sample.sample_id,
        messages=sample.messages,
        tools=sample.tools_json,
        message_mask=sample.trained,
        environment=sample.environment,
        kind=sample.kind,
        scaffold=sample.scaffold,
        layout=sample.layout,
        agent=sample.agent,
        role=sample.role,
        effort=sample.effort,
        subgroup_id=sample.subgroup_id,
        repeat=sample.repeat,
        policy=sample.policy,
        model=sample.model,
        passed=sample.passed,
        repercussion=sample.repercussion,
        reward=sample.reward,
        advantage=sample.advantage,
        episode_id=sample.episode_id,
        task_id=sample.task_id,
        pattern_id=sample.pattern_id,
    )


# Ids of one turn: what was added to the context in front of the reply, the reply, and its logprobs.
_TurnIds = tuple[list[int], list[int], list[float] | None]


def token_row(sample: Sample, tokenizer: Tokenizer) -> TokenRow:
    """The sample as token ids with a loss mask, up to the last reply; what follows it is seen by nobody.

    Where the policy sampled tokens, the ids are its own: the concatenation of every turn's prompt and output ids,
    exactly what the model saw and wrote. Otherwise (blueprint) `tokenizer` writes each turn by its chat template, a
    finished reply closed by the end-of-turn token; one cut off is closed outside the mask. The mask covers only ids of
    trained replies. Raises StageError for a sample whose ids are incomplete or that has nothing to train on.
    """
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float | None] = []
    turns = (
        _sampled(sample) if any(turn.output_ids is not None for turn in sample.turns) else _written(sample, tokenizer)
    )
    for turn, (prompt, output, output_logprobs) in zip(sample.turns, turns, strict=True):
        ids += [*prompt, *output]
        mask += [False] * len(prompt) + [sample.trained[turn.message]] * len(output)
        logprobs += [None] * len(prompt) + (list(output_logprobs) if output_logprobs else [None] * len(output))
    if not any(mask):
        raise StageError(
            f"{sample.sample_id}: no token to train on; the filter `nothing_trained` should have refused it"
        )
    versions = dict.fromkeys(turn.policy_version for turn in sample.turns if turn.policy_version is not None)
    return TokenRow(
        sample_id=sample.sample_id,
        input_ids=ids,
        loss_mask=mask,
        logprobs=logprobs,
        policy_version="+".join(versions) or None,
        agent=sample.agent,
        effort=sample.effort,
        subgroup_id=sample.subgroup_id,
        repeat=sample.repeat,
        repercussion=sample.repercussion,
        reward=sample.reward,
        advantage=sample.advantage,
    )


def _sampled(sample: Sample) -> Iterator[_TurnIds]:
    for turn in sample.turns:
        if turn.prompt_ids is None or turn.output_ids is None:
            raise StageError(f"{sample.sample_id}: turn {turn.index} has no token ids, though other turns have them")
        if turn.logprobs is not None and len(turn.logprobs) != len(turn.output_ids):
            raise StageError(f"{sample.sample_id}: turn {turn.index} has not one logprob for each output id")
        yield turn.prompt_ids, turn.output_ids, turn.logprobs


def _written(sample: Sample, tokenizer: Tokenizer) -> Iterator[_TurnIds]:
    start, closed = 0, True
    for turn in sample.turns:
        before = [ChatTurn(m.role, m.content) for m in sample.messages[start : turn.message]]
        prompt = tokenizer.chat_prefix(before, first=start == 0, closed=closed)
        closed = turn.finish_reason == "stop"
        reply = tokenizer.encode(sample.messages[turn.message].content)
        yield prompt, [*reply, tokenizer.eos_id] if closed else reply, None
        start = turn.message + 1
