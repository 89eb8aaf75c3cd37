"""Vocabularies of different tokenizers become one that the tokenizers library reads."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agents.engine.files import SMOLLM2
from agents.engine.tokenizer import load_tokenizer
from pipelines.merge.vocabulary import reconcile
from schemas.errors import MergeError
from schemas.merge import MergeRecipe

TEXTS = [["the cat sat on the mat"] * 9, ["the singing ring of a king", "böse Wörter"] * 9]
SPECIAL = ["<|a|>", "<|b|>"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two byte-level BPE tokenizers with a special token each; the first's stands outside its model's vocabulary."""
    made = []
    for i, texts in enumerate(TEXTS):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(
            texts, trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
        )
        tokenizer.add_special_tokens([AddedToken(SPECIAL[i], special=True)])
        folder = tmp_path_factory.mktemp(f"m{i}")
        tokenizer.save(str(folder / "tokenizer.json"))
        made.append(folder)
    return made


def recipe(vocabulary: str) -> MergeRecipe:
    return MergeRecipe.model_validate({"method": "linear", "models": ["a"], "vocabulary": vocabulary})


def loaded(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def sizes(folders: list[Path], padding: int = 0) -> list[int]:
    return [loaded(folder).get_vocab_size() + padding for folder in folders]


def test_same_needs_no_files(tmp_path: Path) -> None:
    assert reconcile(recipe("same"), [tmp_path], [3]) is None


def test_base_keeps_tokenizer_and_padding(folders: list[Path]) -> None:
    rows = sizes(folders, 5)
    found = reconcile(recipe("base"), folders, rows)
    assert found is not None and found.size == rows[0]
    assert found.tokenizer_json == (folders[0] / "tokenizer.json").read_bytes()
    assert (found.rows[folders[0]] == np.arange(rows[0])).all()
    other = loaded(folders[1]).get_vocab()
    for token, i in found.tokens.items():
        assert found.rows[folders[1]][i] == other.get(token, -1)
    assert (found.rows[folders[1]][-5:] == -1).all()
    assert found.own[folders[1]].tolist() == sorted(other.values())


@pytest.mark.parametrize("padding", [0, 3, 200])
def test_union_has_all_tokens(folders: list[Path], padding: int) -> None:
    rows = sizes(folders, padding)
    found = reconcile(recipe("union"), folders, rows)
    assert found is not None
    first, other = (loaded(folder).get_vocab() for folder in folders)
    assert found.tokens.keys() == first.keys() | other.keys() and found.tokens.items() >= first.items()
    assert found.size == max(rows[0], len(found.tokens))
    result = Tokenizer.from_str(found.tokenizer_json.decode())
    assert result.get_vocab() == found.tokens
    for folder, own in zip(folders, (first, other), strict=True):
        for token, i in found.tokens.items():
            assert found.rows[folder][i] == own.get(token, -1)
    new = sorted(other.keys() - first.keys(), key=other.__getitem__)
    assert [found.tokens[token] for token in new] == list(range(len(first), len(first) + len(new)))
    assert all(result.decode([found.tokens[t]]) == loaded(folders[1]).decode([other[t]]) for t in new)
    assert result.encode("x<|b|>").ids[-1] == found.tokens["<|b|>"]
    assert result.decode([found.tokens["<|b|>"]]) == ""  # still special


@settings(deadline=None)
@given(text=st.text() | st.sampled_from([t for texts in TEXTS for t in texts]))
def test_text_encodes_as_before(folders: list[Path], text: str) -> None:
    found = reconcile(recipe("union"), folders, sizes(folders))
    assert found is not None
    if "<|b|>" not in text:
        whole = Tokenizer.from_str(found.tokenizer_json.decode())
        assert whole.encode(text).ids == loaded(folders[0]).encode(text).ids


def test_the_real_tokenizer(folders: list[Path], tmp_path: Path) -> None:
    smol = load_tokenizer(SMOLLM2)
    (tmp_path / "tokenizer.json").write_text(json.dumps(smol._definition))
    found = reconcile(recipe("union"), [tmp_path, *folders], [smol.vocab_size, *sizes(folders)])
    assert found is not None and found.size > smol.vocab_size
    before, after = loaded(tmp_path), Tokenizer.from_str(found.tokenizer_json.decode())
    for text in ("<|im_start|>user\nSum  of 12 and ünïcode 🎉?<|im_end|>", *TEXTS[1]):
        assert after.encode(text).ids == before.encode(text).ids
    assert all(after.token_to_id(token) == i for token, i in before.get_vocab().items())
    assert after.encode("<|a|><|b|>").ids == [found.tokens["<|a|>"], found.tokens["<|b|>"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "model.vocab: neither"),
        ('{"model": {"vocab": 3}}', "model.vocab: neither"),
        ('{"model": {"vocab": {"a": "0"}}}', "id of token 'a'"),
        ('{"model": {"vocab": {"a": -1}}}', "id of token 'a'"),
        ('{"model": {"vocab": {"a": 0, "b": 0}}}', "same id"),
        ('{"model": {"vocab": {"a": 0}}, "added_tokens": [3]}', "added_tokens: not a list"),
        ('{"model": {"vocab": {"q q": 999}}}', "'q q' (999)"),
        ('{"model": {"vocab": {"a": 999}}}', "id 900 is below the largest"),
        ('{"model": {"vocab": [["a", 0.5]]}}', "scored pieces"),
    ],
)
def test_broken_tokenizers(folders: list[Path], tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(MergeError) as caught:
        reconcile(recipe("union"), [tmp_path, folders[0]], [900, *sizes(folders[:1])])
    assert words in str(caught.value) and str(tmp_path / "tokenizer.json") in str(caught.value)


def test_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(MergeError, match=r"tokenizer\.json: cannot be read"):
        reconcile(recipe("base"), [tmp_path], [3])
