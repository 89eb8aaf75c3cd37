"""Replies that must match a grammar, through llguidance. No torch.

`Constraint` is called by `engine`, `worker` and `sampler`; `tool_call_grammar` by the swarm, which knows tools and
tags; `grammar_of` by the server.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agents.engine.closing import allowed, ending, has, is_free, words_of
from schemas.errors import EngineRefused

if TYPE_CHECKING:
    from llguidance import LLTokenizer


GUARDED = 96
"""Tokens before the end of the budget from which on a reply is kept from running into it."""
_SLACK = 1


class Constraint:
    """One reply's place in its grammar. EngineRefused when the grammar is not valid.

    A reply whose budget runs out is ended in time, so that it is valid all the same: `fits` refuses tokens from which
    there is no way to the end within the budget, `forced` gives the way when it must be taken. Both only look when at
    most 96 tokens are left, and cost nothing while free text is written. A budget too small from the start, or a
    grammar that asks for long text, ends as any reply does that is cut: "length".

    `allowed`: a bit for each id, lowest first: whether it can come next. The end-of-turn id: where the grammar may end.
    """

    def __init__(self, tokenizer: "LLTokenizer", grammar: str) -> None:
        from llguidance import LLMatcher

        try:
            self._matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        except UnicodeEncodeError as error:
            raise EngineRefused(f"grammar: not Unicode text: {error.reason}") from error
        self._tokenizer, self._words = tokenizer, words_of(tokenizer)
        self._check()
        # A known way to the end has `_length` tokens. It is measured when needed, from where `_unmeasured` stands: text
        # written since then leaves it as it is. So it depends on the ids alone, and `replay` comes to the same.
        self._unmeasured: LLMatcher | None = self._matcher.deep_copy()
        self._length: int | None = None
        self._next: tuple[int, int] | None = None  # a token that was found to fit, and the length of the way after it
        self._look()

    def fits(self, token: int, remaining: int) -> bool:
        """Whether the reply can still end as it must within `remaining` tokens after `token`. Also True where no way to
        the end is known anyhow."""
        if remaining > GUARDED or token == self._words.eos or self._is_text(token):
            return True
        here = self._ending_length()
        if here is None or here > remaining + 1:
            return True
        ahead = self._matcher.deep_copy()
        ahead.consume_token(token)
        ids = ahead.compute_ff_tokens()
        ahead.consume_tokens(ids)
        way = ending(ahead, self._tokenizer)
        if way is None or len(ids) + len(way) > remaining:
            return False
        self._next = token, len(way)
        return True

    def way_out(self) -> list[int] | None:
        """Ids that end the reply from here; None when no short way is found."""
        return ending(self._matcher, self._tokenizer)

    def forced(self, token: int, remaining: int | None = None) -> list[int]:
        """Move on by `token`; the ids that must follow, the end-of-turn id after the last one when nothing else can.

        `remaining`: tokens of the budget left after `token` (None: not bounded). Where they just suffice for the way to
        the end, that is what must follow.
        """
        if token == self._words.eos:
            return []
        text = self._is_text(token)
        self._consume([token])
        ids: list[int] = self._matcher.compute_ff_tokens()
        self._consume(ids)
        if self._matcher.is_stopped():
            return ids if self._words.eos in ids else [*ids, self._words.eos]
        if self._next is not None and self._next[0] == token:
            self._length, self._unmeasured = self._next[1], None
        elif ids or not text:
            self._unmeasured = self._matcher.deep_copy()
        self._next = None
        if remaining is not None:
            way = self._last_way(remaining - len(ids))
            if way:
                self._consume(way[:-1])
                return [*ids, *way]
        self._look()
        return ids

    def replay(self, ids: Sequence[int]) -> None:
        """Go to where a reply with these ids stands; forced ones are among them, the end-of-turn id may be missing.
        EngineRefused when the grammar does not allow them."""
        try:
            self._consume(list(ids[:-1] if ids and ids[-1] == self._words.eos else ids))
        except EngineRefused as error:
            raise EngineRefused(f"grammar: the ids are not a reply that followed it ({error})") from error
        self._unmeasured = self._matcher.deep_copy()
        if not self._matcher.is_stopped():
            self._look()

    def _last_way(self, left: int) -> list[int] | None:
        """The way to the end, if it is time to take it."""
        if not 0 < left <= GUARDED:
            return None
        length = self._ending_length()
        if length is None or length + _SLACK < left:
            return None
        way = self.way_out()
        return way if way is not None and len(way) <= left else None

    def _ending_length(self) -> int | None:
        if self._unmeasured is not None:
            way = ending(self._unmeasured, self._tokenizer)
            self._length, self._unmeasured = None if way is None else len(way), None
        return self._length

    def _is_text(self, token: int) -> bool:
        return self._free and has(self._words.plain, token)

    def _consume(self, ids: list[int]) -> None:
        if ids:
            self._matcher.consume_tokens(ids)
            self._check()

    def _look(self) -> None:
        self.allowed = allowed(self._matcher, self._words)
        self._check()
        if not self.allowed.any():
            raise EngineRefused("grammar: it asks for a control token")
        self._free = is_free(self.allowed, self._words)

    def _check(self) -> None:
        if self._matcher.is_error():
            # The first line says what is wrong; the rest is the parser's state and the whole grammar.
            raise EngineRefused(f"grammar: {self._matcher.get_error().strip().partition(chr(10))[0]}")


def grammar_of(structured: Mapping[str, Any]) -> str:
    """The Lark grammar of a request for structured output, which is one of

    {"json": schema} | {"json_object": True} | {"regex": str} | {"choice": [str, ...]} | {"grammar": Lark}

    JSON is written without optional white space. EngineRefused for anything else; whether schema, expression and
    grammar are valid is seen by `Constraint`.
    """
    match dict(structured):
        case {"json": dict() as schema, **rest} if not rest:
            return f"start: %json {_json(schema | {'x-guidance': _COMPACT})}\n"
        case {"json_object": True, **rest} if not rest:
            return f"start: %json {_json({'type': 'object', 'x-guidance': _COMPACT})}\n"
        case {"regex": str() as expression, **rest} if not rest:
            from llguidance import regex_to_lark

            return f"start: /{regex_to_lark(expression, '')}/\n"
        case {"choice": [*choices], **rest} if not rest and choices and all(isinstance(c, str) for c in choices):
            return f"start: {' | '.join(map(json.dumps, choices))}\n"
        case {"grammar": str() as lark, **rest} if not rest:
            return lark
    kinds = "json (a schema), json_object (true), regex, choice (strings) or grammar"
    raise EngineRefused(f"structured output is one of {kinds}, not {sorted(map(str, structured))}")


def _json(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EngineRefused(f"the JSON schema is not JSON: {error}") from error


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
