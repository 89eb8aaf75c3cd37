"""Answers of /v1/completions in OpenAI's older shape, with vLLM's `token_ids`. Called by `app`."""

from collections.abc import Sequence
from typing import Any

from agents.engine.base import Alternative, Chunk, GenerateResult
from agents.engine.serving.prompt import completion_requests
from agents.engine.serving.replies import Answer, ServedEngine
from agents.engine.serving.schema import CompletionBody
from agents.engine.serving.tokens import logprob, piece


class TextWriter:
    """`replies.Writer` of one completion request."""

    names = ("cmpl", "text_completion", "text_completion")

    def __init__(self, body: CompletionBody, engine: ServedEngine) -> None:
        self.body, self.requests = body, completion_requests(body, engine.tokenizer, engine.context)
        self._tokenizer = engine.tokenizer
        self._offsets = [0] * body.n

    def first(self) -> list[Answer]:
        """Nothing comes before the text."""
        return []

    def part(self, index: int, chunk: Chunk) -> list[Answer]:
        """Text that is certain by now; ids and logprobs as they come."""
        more = self._ids(index, chunk.ids, chunk.logprobs, chunk.top)
        return [_choice(index, chunk.text, **more)] if chunk.text or more else []

    def last(self, index: int, result: GenerateResult) -> list[Answer]:
        """Why the reply ended."""
        return [_choice(index, "", **self._raw(result), finish_reason=result.finish_reason)]

    def whole(self, index: int, result: GenerateResult) -> Answer:
        """The text, and what was asked for about its tokens."""
        more = self._ids(index, result.output_ids or (), result.logprobs or (), result.top or ())
        return _choice(index, result.text, **more, **self._raw(result), finish_reason=result.finish_reason)

    def prompt_ids(self) -> Sequence[int]:
        """The prompt itself."""
        return self.requests[0].prompt or ()

    def _ids(
        self, index: int, ids: Sequence[int], logprobs: Sequence[float], top: Sequence[Sequence[Alternative]]
    ) -> Answer:
        answer: Answer = {}
        if self.body.logprobs is not None:
            answer["logprobs"] = self._logprobs(index, ids, logprobs, top or [()] * len(ids))
        if self.body.return_token_ids:
            answer["token_ids"] = list(ids)
        return answer if ids else {}

    def _logprobs(
        self, index: int, ids: Sequence[int], logprobs: Sequence[float], top: Sequence[Sequence[Alternative]]
    ) -> dict[str, Any]:
        texts = [piece(self._tokenizer, token)[0] for token in ids]
        offsets = []
        for text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        others = [{piece(self._tokenizer, o.token)[0]: logprob(o.logprob) for o in of_one} for of_one in top]
        values = [logprob(value) for value in logprobs]
        return {"tokens": texts, "token_logprobs": values, "text_offset": offsets, "top_logprobs": others}

    def _raw(self, result: GenerateResult) -> Answer:
        if not self.body.return_raw_logprobs:
            return {}
        return {"raw_logprobs": [None if raw is None else logprob(raw) for raw in result.raw_logprobs or ()]}


def _choice(index: int, text: str, **more: Any) -> Answer:
    return {"index": index, "text": text, "finish_reason": None, "logprobs": None, **more}
