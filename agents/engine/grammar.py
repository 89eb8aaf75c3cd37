"""Replies that must match a grammar, through llguidance. No torch.

`Constraint` is called by `engine` and `runner`; `tool_call_grammar` by the swarm, which knows tools and tags.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from schemas.errors import EngineRefused

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class Constraint:
    """One reply's place in its grammar. EngineRefused when the grammar is not valid."""

    def __init__(self, tokenizer: "LLTokenizer", grammar: str) -> None:
        from llguidance import LLMatcher

        self._matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        self._words = (tokenizer.vocab_size + 31) // 32
        self._eos = tokenizer.eos_token
        self._check()

    def forbidden(self, vocab_size: int) -> NDArray[np.bool_]:
        """True for every id that cannot come next; the end-of-turn id is allowed where the grammar may end."""
        bits = np.zeros(self._words, dtype=np.int32)
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._check()
        allowed = np.unpackbits(bits.view(np.uint8), count=vocab_size, bitorder="little")
        forbidden: NDArray[np.bool_] = allowed == 0
        return forbidden

    def forced(self, token: int) -> list[int]:
        """Move on by `token`; the ids that must follow, the end-of-turn id after the last one when nothing else can."""
        if token == self._eos:
            return []
        self._matcher.consume_token(token)
        self._check()
        ids: list[int] = self._matcher.compute_ff_tokens()
        if ids:
            self._matcher.consume_tokens(ids)
            self._check()
        if self._matcher.is_stopped() and self._eos not in ids:
            ids.append(self._eos)
        return ids

    def _check(self) -> None:
        if self._matcher.is_error():
            # The first line says what is wrong; the rest is the parser's state and the whole grammar.
            raise EngineRefused(f"grammar: {self._matcher.get_error().strip().partition(chr(10))[0]}")


def tool_call_grammar(
    tools: Sequence[Mapping[str, Any]], open_tag: str, close_tag: str, max_thought: int | None = 120
) -> str:
    """A Lark grammar for: free text, then one call of one of `tools` between the tags, then the end of the turn.

    `tools`: {"name": ..., "parameters": JSON schema} each. The text in front has at most `max_thought` characters
    (None: no bound) and no "<". A call is `open_tag`, a newline, {"name": ..., "arguments": {...}}, a newline,
    `close_tag`.
    """
    if not tools:
        raise ValueError("a tool call needs at least one tool")
    bound = "*" if max_thought is None else f"{{0,{max_thought}}}"
    names = [f"call_{index}" for index in range(len(tools))]
    lines = [
        "start: THOUGHT OPEN (" + " | ".join(names) + ") CLOSE",
        f"THOUGHT: /[^<]{bound}/",
        f"OPEN: {json.dumps(open_tag + chr(10))}",
        f"CLOSE: {json.dumps(chr(10) + close_tag)}",
    ]
    for name, tool in zip(names, tools, strict=True):
        head = json.dumps(f'{{"name": {json.dumps(tool["name"])}, "arguments": ')
        schema = json.dumps(dict(tool["parameters"]) | {"x-guidance": _COMPACT})
        lines.append(f'{name}: {head} %json {schema} "}}"')
    return "\n".join(lines) + "\n"


_COMPACT = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""JSON as `json.dumps` writes it: no white space to ramble in."""
