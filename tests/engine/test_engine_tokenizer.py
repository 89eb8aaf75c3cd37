"""The tokenizer: round trips, hostile text, and the exactness of what the model sees."""

import json
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer

from agents.engine import files
from agents.engine.base import ChatTurn
from agents.engine.tokenizer import ChatTokenizer, load_tokenizer

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
        "from agents.engine.scheduler import Scheduler; load_tokenizer('smollm2').encode('x');"
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
