"""A short way to end a reply that follows a grammar. Called by `grammar.Constraint` when the token budget runs out.

llguidance says what may come next, not how far the end is. `ending` walks to the end on a copy of the matcher, at each
place by the token that closes most: a bracket, a comma, a digit, a quotation mark. It finds short ways, not always the
shortest, and gives up where the grammar asks for long text. To ask whether one token may come costs a microsecond, what
may come 100 to 1000: so the few tokens that close are tried first.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_CLOSERS = '}],"0123456789:[{ '
"""What to take first where structure is written: after `{` no key, after a value no next one."""
_EXITS = '"<\n-_:;.,/|#@()>*+=!?%&$~^`'
"""What may end free text: a JSON string, the text in front of a tool call, a line."""
_LETTERS = "aqz"
"""Where all of these may come, there is text."""
_PLAIN = " .'-_/"
_FREE = 16
"""Where at least one in so many plain tokens may come, text is free: one of them leads no further from the end."""
_FILLERS, _LONGEST, _BRANCHES = 8, 192, 8


@dataclass(frozen=True)
class Words:
    """What the tokens of a vocabulary are made of. Bits: one for each id, lowest first.

    `plain`: bits of tokens of letters, digits, spaces and the like. `ordinary`: bits of all but control tokens (the end
    of a turn is ordinary). `weights`: bytes of each token, 0 for white space and control tokens.
    """

    eos: int
    plain: NDArray[np.uint8]
    ordinary: NDArray[np.uint8]
    weights: NDArray[np.int32]
    first: NDArray[np.uint8]
    closers: tuple[int, ...]
    exits: tuple[int, ...]
    letters: tuple[int, ...]
    enough: int


@lru_cache(maxsize=4)
def words_of(tokenizer: "LLTokenizer") -> Words:
    """The words of a tokenizer; takes about 0.1 s."""
    count = tokenizer.vocab_size
    texts = [tokenizer.decode_bytes([i]) for i in range(count)]
    control = [tokenizer.is_special_token(i) for i in range(count)]
    single = {text: i for i, text in reversed(list(enumerate(texts))) if len(text) == 1 and not control[i]}
    plain = [_is_plain(text) and not special for text, special in zip(texts, control, strict=True)]
    weights = [0 if special or not text.strip() else len(text) for text, special in zip(texts, control, strict=True)]
    eos: int = tokenizer.eos_token
    return Words(
        eos=eos,
        plain=_pack(plain),
        ordinary=_pack([not special or i == eos for i, special in enumerate(control)]),
        weights=np.array(weights, np.int32),
        first=np.array([text[0] if text else 0 for text in texts], np.uint8),
        closers=tuple(single[c.encode()] for c in _CLOSERS if c.encode() in single),
        exits=tuple(single[c.encode()] for c in _EXITS if c.encode() in single),
        letters=tuple(single[c.encode()] for c in _LETTERS if c.encode() in single),
        enough=max(1, sum(plain) // _FREE),
    )


def allowed(matcher: "LLMatcher", words: Words) -> NDArray[np.uint8]:
    """Bits of the ids that can come next, without control tokens: none where the matcher is in error."""
    bits = np.zeros(len(words.ordinary) // 4, dtype=np.int32)
    matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
    return bits.view(np.uint8) & words.ordinary


def has(bits: NDArray[np.uint8], token: int) -> bool:
    """Whether the bit of `token` is set."""
    return bool(bits[token >> 3] >> (token & 7) & 1)


def is_free(bits: NDArray[np.uint8], words: Words) -> bool:
    """Whether text is free where `bits` may come next."""
    return int(np.bitwise_count(bits & words.plain).sum()) >= words.enough


def ending(matcher: "LLMatcher", tokenizer: "LLTokenizer") -> list[int] | None:
    """Ids that end the reply from here, the end-of-turn id last; `matcher` stays where it is. None: none found."""
    words = words_of(tokenizer)
    path = _walk(matcher, words, branch=True)
    if path is None:
        return None
    # Written as the tokenizer would write it, which is shorter, if the grammar takes it so.
    ids: list[int] = tokenizer.tokenize_bytes(tokenizer.decode_bytes(path))
    shorter = len(ids) <= len(path) and matcher.validate_tokens(ids) == len(ids)
    return [*(ids if shorter else path), words.eos]


def _walk(matcher: "LLMatcher", words: Words, *, branch: bool) -> list[int] | None:
    """Ids up to where the grammar may end. `branch`: at the first choice between words (of tools, of an enum) each is
    tried, and the shortest way taken."""
    ahead, path, fillers = matcher.deep_copy(), list[int](), 0
    while len(path) < _LONGEST and not ahead.is_error():
        if ahead.is_accepting():
            return path
        token = _closer(ahead, words)
        ids: list[int] = [token] if token is not None else ahead.compute_ff_tokens()
        if not ids:
            bits = allowed(ahead, words)
            if is_free(bits, words):
                fillers += 1
                ids = [_longest(bits, words)]
            else:
                starts = _starts(bits, words)
                if branch and 1 < len(starts) <= _BRANCHES:
                    return _shortest(ahead, path, starts, words)
                ids = [max(starts, key=lambda i: (words.weights[i], -i))] if starts else []
        if not ids or fillers > _FILLERS:
            return None
        ahead.consume_tokens(ids)
        path += ids
    return None


def _shortest(matcher: "LLMatcher", path: list[int], starts: list[int], words: Words) -> list[int] | None:
    """The shortest way on from `path`, which leads to `matcher`, by one of `starts`."""
    found = []
    for token in starts:
        ahead = matcher.deep_copy()
        ahead.consume_token(token)
        rest = _walk(ahead, words, branch=False)
        if rest is not None:
            found.append([*path, token, *rest])
    return min(found, key=len, default=None)


def _closer(matcher: "LLMatcher", words: Words) -> int | None:
    """A token that closes what is open; in text: one that ends it."""
    if not _in_text(matcher, words):
        return next((token for token in words.closers if matcher.validate_tokens([token])), None)
    for token in words.exits:
        if matcher.validate_tokens([token]):
            ahead = matcher.deep_copy()
            ahead.consume_token(token)
            if not _in_text(ahead, words):
                return token
    return None


def _in_text(matcher: "LLMatcher", words: Words) -> bool:
    return all(matcher.validate_tokens([token]) for token in words.letters)


def _longest(bits: NDArray[np.uint8], words: Words) -> int:
    ids = _ids(bits & words.plain)
    return int(ids[words.weights[ids].argmax()])


def _starts(bits: NDArray[np.uint8], words: Words) -> list[int]:
    """The longest allowed token for each byte that one begins with; white space only where there is nothing else."""
    ids = _ids(bits)
    some = ids[words.weights[ids] > 0]
    ids = some if len(some) else ids
    ids = ids[np.argsort(words.weights[ids], kind="stable")]
    return list(dict(zip(words.first[ids].tolist(), ids.tolist(), strict=True)).values())


def _ids(bits: NDArray[np.uint8]) -> NDArray[np.intp]:
    return np.flatnonzero(np.unpackbits(bits, bitorder="little").view(np.bool_))


def _is_plain(text: bytes) -> bool:
    try:
        return all(c.isalnum() or c in _PLAIN for c in text.decode())
    except UnicodeDecodeError:
        return False


def _pack(bits: list[bool]) -> NDArray[np.uint8]:
    padded = np.zeros((len(bits) + 31) // 32 * 32, bool)
    padded[: len(bits)] = bits
    return np.packbits(padded, bitorder="little")
