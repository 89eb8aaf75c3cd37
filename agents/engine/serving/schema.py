"""Bodies of requests: what is accepted, what is ignored and what is refused by name. Called by `app`.

A null counts as absent everywhere. Numbers are never read from strings.
"""

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from agents.engine.effort import level
from agents.engine.serving.errors import ApiError

IGNORED = {
    *("store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("cache_salt", "request_id", "extra_headers"),
}
"""Fields of OpenAI and vLLM that mean nothing here and do not change a reply."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_k": (-1, 0),
    "min_p": (0,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    **dict.fromkeys(("functions", "function_call", "audio", "prediction", "web_search_options", "verbosity"), ()),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "stop_token_ids"), ()),
    **dict.fromkeys(("chat_template", "chat_template_kwargs", "documents", "prompt_logprobs", "bad_words"), ()),
}
"""Fields that are known and not supported, with the values that ask for nothing."""
MESSAGES = 10_000
"""Of one conversation. Each takes five tokens at least."""
FIELDS = 256
"""Of one object with fixed fields: each unknown one would be an error of its own to write down."""
_UNSAID = ("annotations", "refusal", "reasoning", "reasoning_content")
"""Of a message that comes back in a history: not part of the conversation."""


class Body(BaseModel):
    """Closed, without conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if len(value) > FIELDS:
            raise ValueError(f"must have at most {FIELDS} fields")
        return {k: v for k, v in value.items() if v is not None}


def _text(value: Any) -> Any:
    parts = value if isinstance(value, list) else [{"type": "text", "text": value}]
    texts = [part["text"] for part in parts if _is_text(part)]
    if len(texts) < len(parts):
        raise ValueError("must be a string or a list of text parts")
    return "\n".join(texts)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _prompt(value: Any) -> str | list[int]:
    ids = isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)
    if not (value and (ids or isinstance(value, str))):
        raise ValueError("must be one text or one list of token ids, and not empty")
    checked: str | list[int] = value
    return checked


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _effort(value: Any) -> Any:
    return level(value) if isinstance(value, str) else value


def _choice(value: Any) -> Any:
    """`tool_choice` as one word, or the forced function's name behind a colon, which no name has."""
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        return f":{function['name']}"
    raise ValueError('must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}')


Text = Annotated[str, BeforeValidator(_text)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class FunctionCall(Body):
    """A call that an earlier reply made: `arguments` is JSON text, as OpenAI has it."""

    name: FunctionName
    arguments: str


class CallMade(Body):
    """One entry of `tool_calls`."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class Message(Body):
    """One message. `name` and the ids of calls are accepted, and not written into the prompt: ChatML has no place."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text = ""
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[CallMade] = []

    @model_validator(mode="before")
    @classmethod
    def _said(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if k not in _UNSAID} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only the assistant makes tool_calls")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a result needs its tool_call_id")
        if "content" not in self.model_fields_set and not self.tool_calls:
            raise ValueError("content is missing")
        return self


class Function(Body):
    """A function the model may call. `strict` holds for constrained calls (`tool_choice` required or named) anyway."""

    name: FunctionName
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    strict: bool = False


class Tool(Body):
    """One entry of `tools`."""

    type: Literal["function"]
    function: Function


class JsonSchema(Body):
    """The schema of `response_format`."""

    name: str
    description: str = ""
    strict: bool = False
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Body):
    """What form a reply has."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with the type json_schema, and with no other")
        return self


class StructuredOutputs(Body):
    """What form a reply has, as vLLM names it: exactly one field."""

    grammar: str | None = None
    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    json_object: bool | None = None
    choice: list[str] | None = Field(default=None, min_length=1, max_length=1024)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("must have one of grammar, json, json_object, regex, choice")
        return self


class StreamOptions(Body):
    """`include_usage`: one more chunk with the counts; `include_obfuscation` asks for padding, which is left out."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Generation(Body):
    """What both endpoints take."""

    model: str
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: Annotated[list[Stop], BeforeValidator(_stops)] = Field(default=[], max_length=4)
    n: int = Field(default=1, ge=1, le=8)
    stream: bool = False
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool = False
    return_raw_logprobs: bool = False
    ignore_eos: bool = False
    user: str = Field(default="", max_length=512)
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if 0 < self.temperature < 1e-3:
            raise ValueError("temperature is 0 (greedy) or at least 0.001")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream")
        return self


class ChatBody(Generation):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MESSAGES)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)
    tools: list[Tool] = Field(default=[], max_length=128)
    tool_choice: Annotated[str, BeforeValidator(_choice)] = "auto"
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None
    reasoning_effort: Annotated[int, BeforeValidator(_effort), Field(ge=1, le=100)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [tool.function.name for tool in self.tools]
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs")
        if self.messages[-1].role == "assistant":
            raise ValueError("the last message must not be of the assistant")
        if len(set(names)) < len(names):
            raise ValueError("tools have the same name twice")
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice needs tools")
        if self.tool_choice[0] == ":" and self.tool_choice[1:] not in names:
            raise ValueError("tool_choice names a function that tools does not have")
        forms = [self.structured_outputs, self.response_format and self.response_format.type != "text"]
        if sum(bool(form) for form in [*forms, self.offered]) > 1:
            raise ValueError("only one of response_format, structured_outputs and tools (but tool_choice none)")
        return self

    @property
    def offered(self) -> list[Function]:
        """Functions that the reply may call."""
        return [] if self.tool_choice == "none" else [tool.function for tool in self.tools]


class CompletionBody(Generation):
    """POST /v1/completions. `logprobs`: how many alternatives, as this older endpoint has it."""

    prompt: Annotated[Any, BeforeValidator(_prompt)]
    max_tokens: int = Field(default=16, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=20)


B = TypeVar("B", bound=Body)


def parse(kind: type[B], raw: bytes | bytearray) -> B:
    """A body. ApiError 400 names the field that is wrong."""
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ApiError(400, "the body is not a JSON object")
    known = {name: field for name, field in value.items() if name not in IGNORED and field is not None}
    for name in NEUTRAL.keys() & known.keys():
        if known.pop(name) not in NEUTRAL[name]:
            raise ApiError(400, f"{name} is not supported", param=name, code="unsupported_parameter")
    try:
        return kind.model_validate(known)
    except ValidationError as error:
        raise _wrong(error) from error


def _wrong(error: ValidationError) -> ApiError:
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ""
    for part in problem["loc"]:
        # Which branch of a union was tried is no field.
        if isinstance(part, int):
            place += f"[{part}]"
        elif part not in ("str", "dict[str,any]"):
            place += f".{part[:100]}" if place else part[:100]
    if problem["type"] == "extra_forbidden":
        return ApiError(400, f"unknown field: {place}", param=place, code="unknown_parameter")
    said = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "model_type":
        said = "must be an object"
    return ApiError(400, f"{place}: {said}" if place else said, param=place or None)
