"""Answers of /v1/chat/completions in OpenAI's shape, with vLLM's `token_ids`. Called by `app`."""

import uuid
from collections.abc import Sequence
from typing import Any

from agents.engine.base import Chunk, GenerateResult
from agents.engine.serving.calls import Call, CallReader
from agents.engine.serving.prompt import chat_requests
from agents.engine.serving.replies import Answer, ServedEngine
from agents.engine.serving.schema import ChatBody
from agents.engine.serving.tokens import entries, logprob


class ChatWriter:
    """`replies.Writer` of one chat request."""

    names = ("chatcmpl", "chat.completion", "chat.completion.chunk")

    def __init__(self, body: ChatBody, engine: ServedEngine) -> None:
        self.body, self.requests = body, chat_requests(body, engine.context)
        self._tokenizer = engine.tokenizer
        self._readers = [self._reader() for _ in self.requests]

    def _reader(self) -> CallReader:
        return CallReader({f.name for f in self.body.offered}, None if self.body.parallel_tool_calls else 1)

    def first(self) -> list[Answer]:
        """The role, once for each choice."""
        return [_delta(index, {"role": "assistant", "content": ""}) for index in range(self.body.n)]

    def part(self, index: int, chunk: Chunk) -> list[Answer]:
        """Text and calls that are certain by now; ids and logprobs as they come."""
        deltas = self._deltas(index, self._readers[index].feed(chunk.text))
        more = self._ids(chunk.ids, chunk.logprobs, chunk.top)
        if not deltas and any(more.values()):
            deltas = [{}]
        return [_delta(index, delta, **(more if place == 0 else {})) for place, delta in enumerate(deltas)]

    def last(self, index: int, result: GenerateResult) -> list[Answer]:
        """What was held back, and why the reply ended."""
        reader = self._readers[index]
        rest = [_delta(index, delta) for delta in self._deltas(index, reader.end())]
        end = _delta(index, {}, **self._raw(result))
        return [*rest, {**end, "finish_reason": _reason(result, reader)}]

    def whole(self, index: int, result: GenerateResult) -> Answer:
        """The message, and what was asked for about its tokens."""
        reader = self._reader()
        found = [*reader.feed(result.text), *reader.end()]
        calls = [_call(call) for call in found if isinstance(call, Call)]
        content = "".join(text for text in found if isinstance(text, str))
        message: Answer = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
        return {
            "index": index,
            "message": message | ({"tool_calls": calls} if calls else {}),
            "finish_reason": _reason(result, reader),
            "logprobs": None,
            **self._ids(result.output_ids or (), result.logprobs or (), result.top or ()),
            **self._raw(result),
        }

    def prompt_ids(self) -> Sequence[int]:
        """As the engine writes the messages."""
        return self._tokenizer.chat_prefix(self.requests[0].messages, first=True, closed=True)

    def _deltas(self, index: int, found: list[str | Call]) -> list[dict[str, Any]]:
        number = self._readers[index].calls - sum(isinstance(one, Call) for one in found)
        deltas: list[dict[str, Any]] = []
        for one in found:
            if isinstance(one, str):
                deltas.append({"content": one})
                continue
            call = _call(one)
            head = call["function"] | {"arguments": ""}
            deltas.append({"tool_calls": [{"index": number, **call, "function": head}]})
            deltas.append({"tool_calls": [{"index": number, "function": {"arguments": one.arguments}}]})
            number += 1
        return deltas

    def _ids(self, ids: Sequence[int], logprobs: Sequence[float], top: Sequence[Any]) -> Answer:
        answer: Answer = {}
        if self.body.logprobs:
            answer["logprobs"] = {"content": entries(self._tokenizer, ids, logprobs, top), "refusal": None}
        if self.body.return_token_ids:
            answer["token_ids"] = list(ids)
        return answer if ids else {}

    def _raw(self, result: GenerateResult) -> Answer:
        if not self.body.return_raw_logprobs:
            return {}
        return {"raw_logprobs": [None if raw is None else logprob(raw) for raw in result.raw_logprobs or ()]}


def _delta(index: int, delta: dict[str, Any], **more: Any) -> Answer:
    return {"index": index, "delta": delta, "finish_reason": None, "logprobs": None, **more}


def _call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _reason(result: GenerateResult, reader: CallReader) -> str:
    return "tool_calls" if reader.calls and result.finish_reason == "stop" else result.finish_reason
