"""From a body to what the engine is asked. Called by `chat` and `completions`."""

import json
import secrets
import uuid
from typing import Any

from pydantic_core import from_json

from agents.engine.base import ChatTurn, GenerateRequest, Sampling
from agents.engine.grammar import grammar_of, tool_call_grammar
from agents.engine.serving.calls import CLOSE, OPEN, arguments_text
from agents.engine.serving.errors import ApiError
from agents.engine.serving.schema import ChatBody, CompletionBody, Function, Generation, Message
from agents.engine.tokenizer import ChatTokenizer
from prompts import render
from schemas.ids import derive_seed

LONGEST = 128
"""Characters of one token, at most."""


def check_length(text: str, context: int, field: str) -> None:
    """ApiError 400 for a text that cannot fit. Encoding it to find out would keep all threads waiting for seconds."""
    if len(text) > LONGEST * context:
        message = f"the {field} has {len(text)} characters, which the context of {context} tokens cannot hold"
        raise ApiError(400, message, param=field, code="context_length_exceeded")


def chat_requests(body: ChatBody, context: int) -> list[GenerateRequest]:
    """One request per choice. ApiError 400 for what no schema can tell."""
    wanted = body.max_completion_tokens or body.max_tokens or context
    top = body.top_logprobs if body.logprobs else 0
    return _requests(body, turns(body), None, wanted, top, body.reasoning_effort, chat_grammar(body))


def completion_requests(body: CompletionBody, tokenizer: ChatTokenizer, context: int) -> list[GenerateRequest]:
    """One request per choice. ApiError 400 for a text that is far too long."""
    if isinstance(body.prompt, str):
        check_length(body.prompt, context, "prompt")
    ids = tokenizer.encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
    if not ids:
        raise ApiError(400, "the prompt has no token", param="prompt")
    return _requests(body, (), tuple(ids), body.max_tokens, body.logprobs or 0, None, structure(body))


def _requests(
    body: Generation,
    messages: tuple[ChatTurn, ...],
    prompt: tuple[int, ...] | None,
    max_tokens: int,
    top_logprobs: int,
    effort: int | None,
    grammar: str | None,
) -> list[GenerateRequest]:
    seed = secrets.randbits(63) if body.seed is None else body.seed
    name = f"http-{uuid.uuid4().hex}"
    return [
        GenerateRequest(
            messages=messages,
            conversation=f"{name}-{index}",
            sampling=Sampling(
                max_tokens=max_tokens,
                temperature=body.temperature,
                top_p=body.top_p,
                seed=choice_seed(seed, index),
                stop=tuple(body.stop),
                effort=effort,
                raw_logprobs=body.return_raw_logprobs,
                top_logprobs=top_logprobs,
                ignore_eos=body.ignore_eos,
            ),
            grammar=grammar,
            prompt=prompt,
            priority=-body.priority,  # vLLM: lower ones run first
            owner=body.user,
        )
        for index in range(body.n)
    ]


def choice_seed(seed: int, index: int) -> int:
    """The seed of one of `n` choices: that of the request for the first, so that it is the reply of n = 1."""
    return seed if index == 0 else derive_seed("choice", seed, index)


def turns(body: ChatBody) -> tuple[ChatTurn, ...]:
    """The messages as the model reads them: effort and tools in the system message, results of tools from the user."""
    messages = list(body.messages)
    system = messages.pop(0).content if messages[0].role in ("system", "developer") else None
    written: list[ChatTurn] = []
    if system is not None or body.reasoning_effort is not None or body.offered:
        written.append(ChatTurn("system", _system(system or "", body.reasoning_effort, body.offered)))
    results: list[str] = []
    for place, message in enumerate(messages, start=len(body.messages) - len(messages)):
        if message.role == "tool":
            results.append(message.content)
            continue
        written += _answered(results)
        results = []
        written.append(_turn(message, place))
    return (*written, *_answered(results))


def _system(content: str, effort: int | None, tools: list[Function]) -> str:
    if effort is None and not tools:
        return content
    lines = [json.dumps(_definition(tool), ensure_ascii=False) for tool in tools]
    return render("engine/system", effort=effort, content=content, tools=lines).removesuffix("\n")


def _definition(tool: Function) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "parameters": tool.parameters}


def _answered(results: list[str]) -> list[ChatTurn]:
    """Results of the calls of one reply, in one message."""
    return [ChatTurn("user", render("engine/results", texts=results).removesuffix("\n"))] if results else []


def _turn(message: Message, place: int) -> ChatTurn:
    if message.role in ("system", "developer"):
        return ChatTurn("system", message.content)
    if message.role == "user":
        return ChatTurn("user", message.content)
    if not message.tool_calls:
        return ChatTurn("assistant", message.content)
    calls = []
    for number, call in enumerate(message.tool_calls):
        arguments = arguments_text(call.function.arguments)
        if arguments is None:
            field = f"messages[{place}].tool_calls[{number}].function.arguments"
            raise ApiError(400, f"{field}: must be the JSON text of an object", param=field)
        calls.append({"name": call.function.name, "arguments": arguments})
    return ChatTurn("assistant", render("engine/calls", content=message.content, calls=calls).removesuffix("\n"))


def chat_grammar(body: ChatBody) -> str | None:
    """The form that the reply must have; None for free text."""
    if body.offered and body.tool_choice != "auto":
        chosen = [f for f in body.offered if body.tool_choice in ("required", f":{f.name}")]
        tools = [{"name": f.name, "parameters": f.parameters} for f in chosen]
        return tool_call_grammar(tools, OPEN, CLOSE)
    form = body.response_format
    if form is not None and form.type != "text":
        return grammar_of({"json_object": True} if form.json_schema is None else {"json": form.json_schema.schema_})
    return structure(body)


def structure(body: Generation) -> str | None:
    """The grammar of `structured_outputs`; vLLM takes a schema as text, too."""
    if body.structured_outputs is None:
        return None
    asked = body.structured_outputs.model_dump(by_alias=True, exclude_unset=True)
    return grammar_of({name: _schema(value) if name == "json" else value for name, value in asked.items()})


def _schema(value: dict[str, Any] | str) -> Any:
    try:
        return from_json(value, allow_inf_nan=False) if isinstance(value, str) else value
    except ValueError as error:
        raise ApiError(400, f"structured_outputs.json: {error}", param="structured_outputs.json") from error
