"""What an engine is: a conversation in, sampled tokens out. The embedded engine and the HTTP client keep this contract.

Who calls it: `agents.swarm.policy`. No torch here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class ChatTurn:
    """One message as text."""

    role: Role
    content: str


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy; equal seeds give equal draws."""

    max_tokens: int
    temperature: float = 0.7
    top_p: float = 0.95
    seed: int = 0
    stop: tuple[str, ...] = ()
    effort: int | None = None


@dataclass(frozen=True)
class GenerateRequest:
    """Ask for the next assistant message.

    `messages`: the whole conversation as text, last one not of the assistant.
    `conversation`: names it; an engine may keep state under this name between calls, until `release`.
    `context_ids`: the token ids of everything up to and with the last reply, as `GenerateResult` gave them
    (`prompt_ids` + `output_ids` of all earlier calls, concatenated); the engine appends the messages after that reply
    and never re-encodes what was sampled. Empty on the first call; engines without token ids ignore it.
    `grammar`: an llguidance grammar (Lark) that the reply must match, or None.
    """

    messages: tuple[ChatTurn, ...]
    conversation: str
    sampling: Sampling
    context_ids: tuple[int, ...] = ()
    grammar: str | None = None


@dataclass(frozen=True)
class GenerateResult:
    """The reply.

    `prompt_ids`: ids added to the context in front of the reply, that is all of it after `context_ids`.
    `output_ids`, `logprobs`: as sampled, the end-of-turn token included when it was sampled. Stop strings are cut from
    `text` only, never from the ids. All three are None for a server that gives no token ids.
    `policy_version` names the weights.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    prompt_ids: tuple[int, ...] | None
    output_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    policy_version: str
    cached_tokens: int = 0


class Engine(Protocol):
    """Produces replies. Raises EngineUnavailable after all retries, EngineRefused when the request is wrong."""

    model: str
    context: int

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """One reply. Concurrent calls are batched."""
        ...

    def release(self, conversation: str) -> None:
        """Drop state kept for a conversation. Unknown names are fine."""
        ...

    async def close(self) -> None:
        """Free everything."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back, with the chat template of one model. Text of others never becomes a control token."""

    vocab_size: int
    eos_id: int

    def encode(self, text: str) -> list[int]:
        """Plain text to ids; text that looks like a control token is encoded as text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Ids to text, control tokens left out."""
        ...

    def chat_prefix(self, messages: Sequence[ChatTurn], *, first: bool, closed: bool) -> list[int]:
        """Ids that lead to the next reply: `messages` written by the chat template and the opening of the reply.

        `first`: nothing precedes them. `closed`: the previous reply ended with its end-of-turn token (when it did not,
        the ids start with that token).
        """
        ...
