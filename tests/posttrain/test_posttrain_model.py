"""The training model is transformers' model, and packs are separate sequences."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_llama import examples, write_llama
from transformers import LlamaForCausalLM

from agents.engine.weights import open_checkpoint
from pipelines.posttrain.examples import Example
from pipelines.posttrain.model import Decoder
from pipelines.posttrain.pack import packs_of


@pytest.mark.parametrize(("tied", "kv_heads"), [(True, 2), (False, 4), (False, 1)])
def test_logits_and_gradients_are_those_of_transformers(tmp_path: Path, tied: bool, kv_heads: int) -> None:
    folder = write_llama(tmp_path, tied=tied, kv_heads=kv_heads)
    peer, model = LlamaForCausalLM.from_pretrained(folder), Decoder(*open_checkpoint(folder))
    (example,) = examples(1)
    ids = torch.from_numpy(example.input_ids.astype(np.int64))
    (pack,) = packs_of([example], 100)
    torch.testing.assert_close(model.logits(model.hidden(pack)), peer(ids[None]).logits[0], rtol=1e-4, atol=1e-5)
    labels = torch.where(torch.from_numpy(example.loss_mask), ids, -100)
    (model.loss_sum(pack) / int(example.loss_mask.sum())).backward()
    peer(ids[None], labels=labels[None]).loss.backward()
    for name, weight in peer.named_parameters():
        torch.testing.assert_close(model.parameters[name].grad, weight.grad, rtol=1e-4, atol=1e-6)


def gradients(model: Decoder, made: list[Example], *, share: bool, max_tokens: int) -> tuple[float, torch.Tensor]:
    total = 0.0
    for pack in packs_of(made, max_tokens, share_prefix=share):
        loss = model.loss_sum(pack)
        total += loss.item()
        loss.backward()
    found = torch.cat([p.grad.flatten() for p in model.parameters.values()])
    for p in model.parameters.values():
        p.grad = None
    return total, found


def test_a_pack_is_its_samples_one_by_one(tmp_path: Path) -> None:
    model = Decoder(*open_checkpoint(write_llama(tmp_path)))
    made = examples(7) + [Example(f"x{e.sample_id}", e.input_ids, e.loss_mask) for e in examples(5, 1)]
    loss, gradient = gradients(model, made, share=False, max_tokens=1)
    for share, max_tokens in ((True, 1000), (True, 50), (False, 1000)):
        other_loss, other = gradients(model, made, share=share, max_tokens=max_tokens)
        assert other_loss == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(other, gradient, rtol=1e-4, atol=1e-5)


def test_the_first_trained_token_may_follow_the_prefix(tmp_path: Path) -> None:
    model = Decoder(*open_checkpoint(write_llama(tmp_path)))
    shared = [5, 6, 7]
    made = [Example(str(i), np.array([*shared, i, i + 1], np.int32), np.array([0, 0, 0, 1, 1], bool)) for i in range(4)]
    (pack,) = packs_of(made, 100)
    assert (pack.prefix, pack.tokens) == (3, 11)
    loss, gradient = gradients(model, made, share=False, max_tokens=1)
    shared_loss, shared_gradient = gradients(model, made, share=True, max_tokens=100)
    assert shared_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(shared_gradient, gradient, rtol=1e-4, atol=1e-5)


def test_only_trained_tokens_count(tmp_path: Path) -> None:
    model = Decoder(*open_checkpoint(write_llama(tmp_path)))
    (example,) = examples(1)
    (pack,) = packs_of([example], 100)
    scores = model.logits(model.hidden(pack)).log_softmax(-1)
    trained = [i for i in range(1, len(example.input_ids)) if example.loss_mask[i]]
    by_hand = -sum(scores[i - 1, example.input_ids[i]].item() for i in trained)
    assert model.loss_sum(pack).item() == pytest.approx(by_hand, rel=1e-5)


token = st.integers(0, 2)
drawn = st.lists(st.lists(st.tuples(token, st.booleans()), min_size=2, max_size=12), min_size=1, max_size=8)


@given(drawn=drawn, max_tokens=st.integers(1, 40), share=st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_sample_is_in_one_pack_and_can_be_read_back(
    drawn: list[list[tuple[int, bool]]], max_tokens: int, share: bool
) -> None:
    made = [
        Example(f"s{i}", np.array([t for t, _ in rows], np.int32), np.array([m for _, m in rows]))
        for i, rows in enumerate(drawn)
    ]
    packs = packs_of(made, max_tokens, share_prefix=share)
    assert sorted(e.sample_id for p in packs for e in p.examples) == sorted(e.sample_id for e in made)
    for pack in packs:
        assert len(pack.examples) == 1 or pack.tokens <= max_tokens
        assert pack.tokens == len(pack.input_ids) == len(pack.positions) <= sum(len(e.input_ids) for e in pack.examples)
        start = pack.prefix
        for example, length in zip(pack.examples, pack.lengths, strict=True):
            assert length > 0
            assert not example.loss_mask[: pack.prefix].any()
            whole = [*pack.input_ids[: pack.prefix], *pack.input_ids[start : start + length]]
            assert whole == example.input_ids.tolist()
            assert pack.positions[start : start + length].tolist() == list(range(pack.prefix, len(whole)))
            start += length
        rows, targets = pack.predictions
        assert targets.tolist() == [t for e in pack.examples for t in e.input_ids[1:][e.loss_mask[1:]]]
        assert (pack.positions[rows] + 1).tolist() == [
            i for e in pack.examples for i in range(1, len(e.input_ids)) if e.loss_mask[i]
        ]
    assert share or all(p.prefix == 0 for p in packs)


def test_a_shared_prefix_is_computed_once() -> None:
    made = examples(20, prefix=40)
    (pack,) = packs_of(made, 1000)
    assert pack.prefix >= 40
    assert pack.tokens < 0.4 * sum(len(e.input_ids) for e in made)


def test_scaffolds_keep_their_own_prefix() -> None:
    made = examples(6, 0, prefix=40) + [
        Example(f"b{i}", e.input_ids, e.loss_mask) for i, e in enumerate(examples(6, 1, prefix=40))
    ]
    assert [p.prefix >= 40 for p in packs_of(made, 1000)] == [True, True]
