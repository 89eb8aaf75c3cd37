"""The tokenizer: round trips, hostile text, and the exactness of what the model sees."""

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer

from agents.engine import files
from agents.engine.base import ChatTurn
from agents.engine.tokenizer import ChatTokenizer, from_gguf, load_tokenizer
from schemas.errors import ConfigError

# SmolLM2's vocabulary lacks some bytes: characters above U+3FFFF and a few control characters are lost to it.
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"]), max_size=60)
HOSTILE = st.lists(
    TEXT | st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_start|>system\n", "<repo_name>"]),
    max_size=5,
).map("".join)
TURN = st.builds(ChatTurn, st.sampled_from(["system", "user"]), HOSTILE)


@given(text=HOSTILE)
def test_text_survives_a_round_trip_and_never_becomes_a_control_token(tokenizer: ChatTokenizer, text: str):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not tokenizer.control_ids & set(ids)


@given(messages=st.lists(TURN, min_size=1, max_size=4), first=st.booleans(), closed=st.booleans())
def test_only_the_template_adds_control_tokens(tokenizer: ChatTokenizer, messages, first, closed):
    ids = tokenizer.chat_prefix(messages, first=first, closed=closed)
    starts = [i for i, token in enumerate(ids) if token == 1]
    ends = [i for i, token in enumerate(ids) if token == tokenizer.eos_id]
    assert len(starts) == len(messages) + 1
    assert len(ends) == len(messages) + (not first and not closed)
    assert set(ids) & tokenizer.control_ids <= {1, tokenizer.eos_id}
    for begin, message in zip(starts, messages, strict=False):
        end = next(e for e in ends if e > begin)
        assert tokenizer.decode(ids[begin + 1 : end]) == f"{message.role}\n{message.content}"


@given(
    turns=st.lists(st.tuples(TURN, TEXT, st.booleans()), min_size=1, max_size=4),
    data=st.data(),
)
def test_pieces_and_replies_concatenate_to_the_whole_conversation(tokenizer: ChatTokenizer, turns, data):
    """Prefix pieces + sampled ids are exactly the ids of the conversation written in one go around the same replies."""
    seen, expected = [], []
    closed = True
    for index, (message, _, closes) in enumerate(turns):
        seen += tokenizer.chat_prefix([message], first=index == 0, closed=closed)
        # Replies are arbitrary ids, as a model samples them: often not what encoding their text would give.
        reply = data.draw(st.lists(st.integers(17, tokenizer.vocab_size - 1), max_size=6))
        reply = [*reply, tokenizer.eos_id] if closes else reply
        seen += reply
        if index:
            expected += [] if closed else [tokenizer.eos_id]
            expected += tokenizer.encode("\n")
        expected += [1, *tokenizer.encode(f"{message.role}\n{message.content}"), 2, *tokenizer.encode("\n")]
        expected += [1, *tokenizer.encode("assistant\n"), *reply]
        closed = closes
    assert seen == expected


def test_agrees_with_the_models_own_template(tokenizer: ChatTokenizer):
    whole = RawTokenizer.from_str(json.dumps(tokenizer._definition))
    messages = [ChatTurn("system", "You are terse. 2048 ways."), ChatTurn("user", "Sum  of 12, 7 and ünïcode 🎉?\n")]
    written = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages) + "<|im_start|>assistant\n"
    assert tokenizer.chat_prefix(messages, first=True, closed=True) == whole.encode(written).ids


def test_digits_are_single_tokens(tokenizer: ChatTokenizer):
    assert len(tokenizer.encode("1234567890")) == 10


def test_every_id_has_its_place(tokenizer: ChatTokenizer):
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (49152, 2)
    assert tokenizer.decode(sorted(tokenizer.control_ids)) == ""


def test_imports_no_torch(weights_file):
    code = (
        "import sys; from agents.engine.tokenizer import load_tokenizer; from agents.engine.http import HttpEngine;"
        "from agents.engine.load import load_engine; from agents.engine.grammar import tool_call_grammar;"
        "from agents.engine.scheduler import Scheduler; from agents.engine.accounting import plan_of;"
        "load_tokenizer('smollm2').encode('x');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_checkpoint_folder_gives_the_same_ids(tokenizer: ChatTokenizer, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer._definition))
    other = load_tokenizer(str(tmp_path))
    text = "def f(x):\n    return x + 1  # <|im_end|> 42"
    assert other.encode(text) == tokenizer.encode(text)
    assert (other.eos_id, other.vocab_size) == (tokenizer.eos_id, tokenizer.vocab_size)
    assert files.find(str(tmp_path)) == tmp_path


CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ORDINARY = ["<tool_call>", "</tool_call>", "<|fim_prefix|>"]
"""As Qwen2.5 declares them: none of these is special, though the last one looks so."""


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A tokenizer of Qwen's kind, learnt from this file's text: the folder transformers saved it to, and itself."""
    from tokenizers import pre_tokenizers, trainers
    from transformers import AddedToken, Qwen2Tokenizer

    raw = Qwen2Tokenizer()._tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        [Path(__file__).read_text()], trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet)
    )
    model = json.loads(raw.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    theirs = Qwen2Tokenizer(vocab=model["vocab"], merges=merges, additional_special_tokens=CONTROL[1:])
    theirs.add_tokens([AddedToken(token, special=False, normalized=False) for token in ORDINARY])
    folder = tmp_path_factory.mktemp("qwen")
    theirs.save_pretrained(folder)
    return folder, theirs


def gguf_fields(definition) -> dict:
    """As llama.cpp's converter writes them: added tokens that look like control tokens are control tokens."""
    ids = definition["model"]["vocab"] | {t["content"]: t["id"] for t in definition["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = {t["content"]: 3 if t["content"].startswith("<|") else 4 for t in definition["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*tokens, "[PAD1]"],
        "tokenizer.ggml.token_type": [*(kinds.get(token, 1) for token in tokens), 5],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in definition["model"]["merges"]],
    }


@given(
    text=st.lists(st.text(max_size=30) | st.sampled_from(["it's 2048\n\n", "  x ", "e\u0301", *ORDINARY])).map("".join)
)
def test_qwen_agrees_with_transformers_from_folder_and_gguf(qwen, text):
    folder, theirs = qwen
    ours = load_tokenizer(str(folder))
    packed = from_gguf(gguf_fields(json.loads((folder / "tokenizer.json").read_text())), "x.gguf")
    ids = ours.encode(text)
    assert packed.encode(text) == ids
    assert ours.decode(ids) == packed.decode(ids) == unicodedata.normalize("NFC", text)
    if "<|" not in text:
        assert ids == theirs.encode(text)


def test_qwen_speaks_chatml_and_keeps_control_tokens_out_of_text(qwen):
    folder, theirs = qwen
    for ours in (
        load_tokenizer(str(folder)),
        from_gguf(gguf_fields(json.loads((folder / "tokenizer.json").read_text())), "x.gguf"),
    ):
        written = "<|im_start|>user\nSum 12 <tool_call>\u00e9<|im_end|>\n<|im_start|>assistant\n"
        turns = [ChatTurn("user", "Sum 12 <tool_call>e\u0301")]
        assert ours.chat_prefix(turns, first=True, closed=True) == theirs.encode(written)
        hostile = "".join(CONTROL + ORDINARY)
        assert set(theirs.encode(hostile)) >= ours.control_ids
        assert not set(ours.encode(hostile)) & ours.control_ids
        assert len(ours.control_ids) == 4
        assert ours.decode(theirs.encode(hostile)) == "<tool_call></tool_call>"
        assert ours.eos_id == theirs.convert_tokens_to_ids("<|im_end|>")
        assert ours.constraint.vocab_size == ours.vocab_size


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.pre": "llama-bpe"}, r"\('gpt2', 'llama-bpe'\) is not supported"),
        ({"tokenizer.ggml.model": "llama"}, "is not supported"),
        ({"tokenizer.ggml.merges": ["zz q"]}, "not a tokenizer"),
        ({"tokenizer.ggml.token_type": []}, "no whole tokenizer"),
    ],
)
def test_other_tokenizers_are_refused(qwen, change, message):
    fields = gguf_fields(json.loads((qwen[0] / "tokenizer.json").read_text()))
    with pytest.raises(ConfigError, match=message):
        from_gguf(fields | change, "x.gguf")
    with pytest.raises(ConfigError, match=r"no whole tokenizer: 'tokenizer\.ggml\.merges'"):
        from_gguf({key: value for key, value in fields.items() if key != "tokenizer.ggml.merges"}, "x.gguf")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"added_tokens": [], "model": {"type": "none"}}'])
def test_a_broken_tokenizer_file_is_a_config_error(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path))
