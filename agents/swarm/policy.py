"""What chooses an agent's next reply. The loop knows this protocol alone.

`EnginePolicy` asks a model, `BlueprintPolicy` (blueprint.py) plays reference actions, `ScriptedPolicy` a fixed text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from agents.engine.base import ChatTurn, Engine, GenerateRequest, Sampling
from agents.engine.grammar import tool_call_grammar
from agents.scaffolds.base import Scaffold
from schemas.episode import ChatMessage, Turn
from schemas.ids import derive_seed
from schemas.task import Action


@dataclass
class Agent:
    """One agent of an episode while it runs. `inbox` and `pending` become its next user message.

    `heard` is the last mail; `seen` holds (turn, action, output) of what ran, for policies that quote them.
    """

    name: str
    role: str
    tools: tuple[str, ...]
    messages: list[ChatMessage]
    active: bool
    turns: list[Turn] = field(default_factory=list)
    context_ids: list[int] = field(default_factory=list)
    inbox: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    heard: str = ""
    seen: list[tuple[int, Action, str]] = field(default_factory=list)

    def branch(self) -> "Agent":
        """A copy that goes on by itself, its turns so far marked as shared."""
        return replace(
            self,
            messages=list(self.messages),
            turns=[turn.model_copy(update={"shared": True}) for turn in self.turns],
            context_ids=list(self.context_ids),
            inbox=list(self.inbox),
            pending=list(self.pending),
            seen=list(self.seen),
        )


@dataclass(frozen=True)
class Reply:
    """A policy's reply. The last four are None for policies that sample no tokens, or whose server hides them."""

    text: str
    finish_reason: Literal["stop", "length"] = "stop"
    slip: bool = False
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    policy_version: str | None = None


class Policy(Protocol):
    """Chooses replies inside one episode."""

    async def reply(self, agent: Agent) -> Reply:
        """The next reply of `agent`, whose last message is not its own. Raises EngineError."""
        ...

    def end(self) -> None:
        """The episode is over: drop what was kept for it."""
        ...


class EnginePolicy:
    """A model behind an engine. Draws depend on the episode's seed, the agent and the turn alone."""

    def __init__(
        self,
        engine: Engine,
        scaffold: Scaffold,
        *,
        episode_id: str,
        seed: int,
        effort: int,
        max_reply_tokens: int,
        temperature: float,
        top_p: float,
        constrain_tools: bool,
    ) -> None:
        self._engine, self._scaffold = engine, scaffold
        self._episode_id, self._seed, self._effort = episode_id, seed, effort
        self._max_tokens = max_reply_tokens
        self._temperature, self._top_p, self._constrain = temperature, top_p, constrain_tools
        self._agents: set[str] = set()

    async def reply(self, agent: Agent) -> Reply:
        """Sample one reply, continuing the very token ids of the agent's earlier turns."""
        self._agents.add(agent.name)
        tags = self._scaffold.CALL_TAGS if self._constrain else None
        result = await self._engine.generate(
            GenerateRequest(
                messages=tuple(ChatTurn(m.role, m.content) for m in agent.messages),
                conversation=f"{self._episode_id}/{agent.name}",
                sampling=Sampling(
                    max_tokens=self._max_tokens,
                    temperature=self._temperature,
                    top_p=self._top_p,
                    seed=derive_seed(self._seed, agent.name, len(agent.turns)),
                    effort=self._effort,
                ),
                context_ids=tuple(agent.context_ids),
                grammar=tool_call_grammar(self._scaffold.offered(agent.tools), *tags) if tags else None,
            )
        )
        return Reply(
            text=result.text,
            finish_reason=result.finish_reason,
            prompt_ids=result.prompt_ids,
            output_ids=result.output_ids,
            logprobs=result.logprobs,
            policy_version=result.policy_version,
        )

    def end(self) -> None:
        """Release the conversations' state in the engine."""
        for name in self._agents:
            self._engine.release(f"{self._episode_id}/{name}")


class ScriptedPolicy:
    """Replies from a list per agent; the last one repeats. Plays the do-nothing baseline and the tests."""

    def __init__(self, replies: Mapping[str, Sequence[str]]) -> None:
        self._replies = replies

    async def reply(self, agent: Agent) -> Reply:
        """The reply whose number is the agent's turn."""
        script = self._replies[agent.name]
        return Reply(script[min(len(agent.turns), len(script) - 1)])

    def end(self) -> None:
        """Nothing is kept."""
