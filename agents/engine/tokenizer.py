"""Text to ids and back, with the ChatML template, for SmolLM and Qwen. No torch: all stages use it as the engine does.

Control tokens (`<|im_start|>`, `<|im_end|>`, ...) are only ever added by id. Text is encoded by a tokenizer that does
not know them, so a tool result that says "<|im_end|>" is plain text to the model.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as RawTokenizer

from agents.engine import base, files
from agents.engine.gguf_file import read_gguf
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_CONTROL, _USER_DEFINED = 3, 4
"""Token types of GGUF files."""

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: dict[str, dict[str, Any]] = {
    "smollm": {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTES],
        },
    },
    "qwen2": {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": _QWEN_WORDS}, "behavior": "Isolated", "invert": False},
                _BYTES | {"use_regex": False},
            ],
        },
    },
}
"""What cuts text into words before byte-level BPE, by `tokenizer.ggml.pre`: each digit alone, no leading space."""


class ChatTokenizer:
    """`base.Tokenizer` over the `tokenizers` library, for models that speak ChatML.

    `control_ids`: ids that no text encodes to and `decode` leaves out. `eos_id` ends a turn (`<|im_end|>`).
    """

    def __init__(self, definition: dict[str, Any], source: str) -> None:
        """`definition`: the content of a `tokenizer.json`. ConfigError when it is none, or has no ChatML tokens."""
        try:
            added = [t | {"special": _is_control(t)} for t in definition["added_tokens"]]
            control = {t["content"]: int(t["id"]) for t in added if t["special"]}
            self._raw = _plain(definition, [t for t in added if not t["special"]])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{source}: not a tokenizer: {error!r}") from error
        missing = [t for t in ("<|im_start|>", "<|im_end|>") if t not in control]
        if missing:
            raise ConfigError(f"{source}: the tokenizer has no control token {missing[0]}; only ChatML is supported")
        self._definition = definition | {"added_tokens": added}
        self.control_ids = frozenset(control.values())
        self.eos_id = control["<|im_end|>"]
        self._start = control["<|im_start|>"]
        largest = max(*self._raw.get_vocab(with_added_tokens=True).values(), *self.control_ids)
        self.vocab_size = largest + 1
        self._newline = self.encode("\n")

    def encode(self, text: str) -> list[int]:
        """Plain text to ids; text that looks like a control token is encoded as text.

        Bytes that the vocabulary has no token for are left out (SmolLM2: characters above U+3FFFF, six control codes).
        Qwen composes characters first (Unicode NFC).
        """
        ids: list[int] = self._raw.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Ids to text, control tokens left out. Bytes that are not UTF-8 become U+FFFD."""
        text: str = self._raw.decode([i for i in ids if i not in self.control_ids], skip_special_tokens=False)
        return text

    def chat_prefix(self, messages: Sequence[base.ChatTurn], *, first: bool, closed: bool) -> list[int]:
        """Ids that lead to the next reply: see `base.Tokenizer`. No default system message is added."""
        ids: list[int] = []
        if not first:
            ids += self._newline if closed else [self.eos_id, *self._newline]
        for message in messages:
            ids += [self._start, *self.encode(f"{message.role}\n{message.content}"), self.eos_id, *self._newline]
        return [*ids, self._start, *self.encode("assistant\n")]

    @cached_property
    def constraint(self) -> "LLTokenizer":
        """The same vocabulary as llguidance wants it. Takes about a second to make."""
        from llguidance import LLTokenizer

        # Slices are token sets with ready-made masks: with one for text without "<", a mask of the free text in front
        # of a tool call takes 0.1 ms instead of 1.
        slices = ["[^<]{1,20}", *LLTokenizer.general_slices(), "[a-z ]{1,20}"]
        return LLTokenizer(json.dumps(self._definition), n_vocab=self.vocab_size, eos_token=self.eos_id, slices=slices)


def _is_control(token: Mapping[str, Any]) -> bool:
    # Qwen marks <|fim_prefix|> and its like as ordinary text, which llama.cpp's converter corrects in GGUF files.
    content = token["content"]
    return bool(token["special"]) or (content.startswith("<|") and content.endswith("|>"))


def _plain(definition: dict[str, Any], added: list[dict[str, Any]]) -> RawTokenizer:
    """The tokenizer with no added tokens but these. ValueError when `tokenizers` cannot read it."""
    # The library numbers added tokens that are not in the vocabulary anew, from its size on: once control tokens are
    # left out, <tool_call> would get the id of one of them.
    vocab = definition["model"]["vocab"] | {t["content"]: t["id"] for t in added}
    changed = {"added_tokens": added, "model": definition["model"] | {"vocab": vocab}}
    whole = json.dumps(definition | changed | {"post_processor": None, "truncation": None, "padding": None})
    try:
        return RawTokenizer.from_str(whole)
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(str(error)) from error


def from_gguf(fields: Mapping[str, Any], source: str) -> ChatTokenizer:
    """The tokenizer inside a GGUF file: byte-level BPE as SmolLM or Qwen has it. ConfigError for any other."""
    model, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in _SPLITS:
        supported = ", ".join(f"('gpt2', {name!r})" for name in _SPLITS)
        raise ConfigError(f"{source}: tokenizer {(model, pre)} is not supported, only {supported}")
    try:
        tokens, merges = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
        kinds = list(zip(tokens, fields["tokenizer.ggml.token_type"], strict=True))
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{source}: the GGUF header has no whole tokenizer: {error}") from error
    added = [
        {"id": i, "content": token, "special": kind == _CONTROL, "normalized": False}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for i, (token, kind) in enumerate(kinds)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    vocab = {token: i for i, token in enumerate(tokens)}
    definition = _SPLITS[pre] | {
        "version": "1.0",
        "added_tokens": added,
        "post_processor": None,
        "decoder": _BYTES,
        "model": {"type": "BPE", "vocab": vocab, "merges": [tuple(m.split(" ", 1)) for m in merges]},
    }
    return ChatTokenizer(definition, source)


def from_folder(folder: Path) -> ChatTokenizer:
    """The tokenizer of a Hugging Face checkpoint folder (`tokenizer.json`)."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: the checkpoint has no fast tokenizer")
    try:
        definition = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(definition, dict):
        raise ConfigError(f"{path}: not a tokenizer")
    return ChatTokenizer(definition, str(path))


@lru_cache(maxsize=4)
def load_tokenizer(model: str) -> ChatTokenizer:
    """The tokenizer of `smollm2`, a .gguf file or a checkpoint folder. ConfigError says what is missing."""
    path = files.find(model)
    if path.is_dir():
        return from_folder(path)
    return from_gguf(read_gguf(path).fields, str(path))
