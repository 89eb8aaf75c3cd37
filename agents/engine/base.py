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
    """How tokens are drawn. `temperature` 0 is greedy; equal seeds give equal draws.

    `effort` 1-100 (S20) bounds reply and reasoning tokens (`effort.py`). `raw_logprobs` asks for logprobs of the
    model's own distribution beside those of the distribution sampled from; `top_logprobs` for that many most probable
    alternatives of each token, under the model's own distribution.
    """

    max_tokens: int
    temperature: float = 0.7
    top_p: float = 0.95
    seed: int = 0
    stop: tuple[str, ...] = ()
    effort: int | None = None
    raw_logprobs: bool = False
    top_logprobs: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True)
class GenerateRequest:
    """Ask for the next assistant message.

    `messages`: the whole conversation as text, last one not of the assistant.
    `conversation`: names it; an engine may keep state under this name between calls, until `release`.
    `context_ids`: the token ids of everything up to and with the last reply, as `GenerateResult` gave them
    (`prompt_ids` + `output_ids` of all earlier calls, concatenated); the engine appends the messages after that reply
    and never re-encodes what was sampled. Empty on the first call; engines without token ids ignore it.
    `grammar`: an llguidance grammar (Lark) that the reply must match, or None.
    `prompt`: token ids to continue as they are; then there are no messages and no `context_ids`.
    `priority`: higher ones run first, and may take the place of lower ones. `owner`: who shares the engine fairly with
    others of the same priority (an episode, a user); empty: the conversation.
    """

    messages: tuple[ChatTurn, ...]
    conversation: str
    sampling: Sampling
    context_ids: tuple[int, ...] = ()
    grammar: str | None = None
    prompt: tuple[int, ...] | None = None
    priority: int = 0
    owner: str = ""


@dataclass(frozen=True)
class Alternative:
    """A token that might have been sampled, and its log probability."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Chunk:
    """What one step added to a reply: new ids with logprobs, and the text that is certain by now."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[tuple[Alternative, ...], ...] = ()


@dataclass(frozen=True)
class GenerateResult:
    """The reply.

    `prompt_ids`: ids added to the context in front of the reply, that is all of it after `context_ids`.
    `output_ids`, `logprobs`: as sampled, the end-of-turn token included when it was sampled. Stop strings are cut from
    `text` only, never from the ids. All three are None for a server that gives no token ids.
    `policy_version` names the weights that sampled the last token; `versions` those of every token, as (name, tokens)
    runs. `raw_logprobs` and `top`: as asked for in `Sampling`; None and () for ids that a grammar forced, where nothing
    was drawn. `reasoning_tokens`: ids spent on thinking.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    prompt_ids: tuple[int, ...] | None
    output_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    policy_version: str
    cached_tokens: int = 0
    versions: tuple[tuple[str, int], ...] = ()
    raw_logprobs: tuple[float | None, ...] | None = None
    top: tuple[tuple[Alternative, ...], ...] | None = None
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class EngineMetrics:
    """Counts since the start, and states now. Tokens, unless the name says otherwise.

    `requests` and `steps`; `sampled`; `prefilled`: prompt computed; `cached`: prompt taken over, of `queried`;
    `turn_hits`, `turn_misses`: requests that continued a conversation, and whether its last blocks were still there;
    `replayed`: computed again for sliding windows; `preempted`, `parked`: times that a request gave way; `evicted`:
    blocks. Now: `waiting`, `running` requests, blocks of 16 tokens used and in all, in both pools.
    """

    requests: int
    steps: int
    sampled: int
    prefilled: int
    cached: int
    queried: int
    turn_hits: int
    turn_misses: int
    replayed: int
    preempted: int
    parked: int
    evicted: int
    waiting: int
    running: int
    blocks_used: int
    blocks_total: int
    window_used: int
    window_total: int


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
