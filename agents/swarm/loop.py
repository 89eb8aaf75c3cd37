"""One episode: rounds of replies and their effects, for one agent or a team, until someone ends it; then verification.

A round asks every active agent for its reply at the same time, and applies the replies in the order of the cast. So
what happens does not depend on which reply came first, and a team of slow models still thinks in parallel.
"""

import asyncio
import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass

from agents.sandbox.base import Sandbox
from agents.scaffolds import scaffold
from agents.scaffolds.base import Parsed
from agents.swarm.actions import perform
from agents.swarm.policy import Agent, Policy, Reply
from agents.swarm.roles import CASTS
from agents.swarm.spec import EpisodeSpec
from prompts import render
from schemas.episode import ChatMessage, Event, StopReason, Turn
from schemas.task import Action, Task

MAX_OBSERVATION = 3000
"""Characters of one action's output that an agent sees; the middle of a longer one is left out."""
_MAX_STALLS = 2


@dataclass(frozen=True)
class Outcome:
    """What one action gave: the text the agent sees (None: nothing), whether it failed, wall seconds it took."""

    text: str | None
    failed: bool = False
    wall_s: float = 0.0


def clip(text: str, limit: int = MAX_OBSERVATION) -> str:
    """The text, or its two ends when it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return render("team/clip", head=text[:half], tail=text[-half:], dropped=len(text) - 2 * half)


class Rounds:
    """The state of one running episode. `run` goes on with it; `agents`, `events`, `stop_reason` tell it."""

    def __init__(self, spec: EpisodeSpec, task: Task) -> None:
        self._scaffold = scaffold(spec.provenance.scaffold)
        self._budget = task.budget
        self._max_turns = min(spec.max_turns or task.budget.turns, task.budget.turns)
        effort = spec.provenance.effort
        self.agents = {
            part.name: self._agent(part.name, part.role, part.tools, effort) for part in CASTS[spec.provenance.layout]
        }
        self._lead = next(iter(self.agents.values()))
        self._lead.active = True
        self._lead.inbox.append(task.instruction)
        self.events: list[Event] = []
        self.stop_reason: StopReason | None = None
        self._stalls = 0
        self.event("episode", "start")
        self._deliver()

    def branch(self) -> "Rounds":
        """A copy that goes on by itself, its turns so far marked as shared."""
        twin = copy.copy(self)
        twin.agents = {name: agent.branch() for name, agent in self.agents.items()}
        twin._lead = next(iter(twin.agents.values()))
        twin.events = list(self.events)
        return twin

    def _agent(self, name: str, role: str, tools: tuple[str, ...], effort: int) -> Agent:
        text = self._scaffold.system_prompt(render(f"roles/{role}", name=name), tools, effort)
        return Agent(name, role, tools, [ChatMessage(role="system", content=text)], active=False)

    def event(self, agent: str, kind: str, turn: int | None = None, **detail: object) -> None:
        """Append an event."""
        text = json.dumps(detail, sort_keys=True, ensure_ascii=False)
        self.events.append(
            Event.model_validate(
                {"seq": len(self.events), "agent": agent, "kind": kind, "turn": turn, "detail_json": text}
            )
        )

    async def run(self, policy: Policy, sandbox: Sandbox, rounds: int | None = None) -> StopReason | None:
        """Play until the lead submits or a budget ends it; after `rounds` rounds without an end, None.

        Raises EngineError and SandboxError.
        """
        while self.stop_reason is None and rounds != 0:
            active = [agent for agent in self.agents.values() if agent.active]
            for agent, reply in zip(active, await _all(policy, active), strict=True):
                await self._apply(agent, reply, sandbox)
            self._deliver()
            rounds = None if rounds is None else rounds - 1
        return self.stop_reason

    async def _apply(self, agent: Agent, reply: Reply, sandbox: Sandbox) -> None:
        index = len(agent.turns)
        parsed = self._scaffold.parse(reply.text, agent.tools)
        agent.messages.append(ChatMessage(role="assistant", content=reply.text))
        self.event(agent.name, "reply", index, finish_reason=reply.finish_reason, parse_error=parsed.error)
        outcomes: list[Outcome] = []
        try:
            for action in parsed.actions:
                outcomes.append(await self._act(agent, index, action, sandbox))
        finally:
            # Also when an action ended the sandbox or ran into the time budget: it is the turn to learn from.
            agent.turns.append(_turn(agent, reply, parsed, outcomes))
        if parsed.error is not None:
            agent.pending.append(self._scaffold.repair(parsed.error))
        agent.pending.extend(self._scaffold.result(o.text) for o in outcomes if o.text is not None)
        agent.context_ids += [*(reply.prompt_ids or ()), *(reply.output_ids or ())]
        self._check_budget(agent)

    async def _act(self, agent: Agent, turn: int, action: Action, sandbox: Sandbox) -> Outcome:
        self.event(agent.name, "action", turn, tool=action.tool)
        arguments = json.loads(action.arguments_json)
        if action.tool == "submit":
            return self._submit(agent, turn, arguments["answer"])
        if action.tool == "wait":
            agent.active = False
            self.event(agent.name, "wait", turn)
            return Outcome(None)
        if action.tool == "send_message":
            outcome = self._send(agent, turn, arguments["to"], arguments["text"])
        else:
            done = await perform(sandbox, action, self._budget.command_s)
            outcome = Outcome(clip(done.text), done.failed, done.wall_s)
            agent.seen.append((turn, action, clip(done.text)))
        self.event(agent.name, "result", turn, failed=outcome.failed)
        return outcome

    def _submit(self, agent: Agent, turn: int, answer: str) -> Outcome:
        self.event(agent.name, "submit", turn, answer=answer)
        agent.active = False
        if agent is self._lead:
            self.stop_reason = "submitted"
        else:
            self._mail(agent.name, self._lead, answer)
        return Outcome(None)

    def _send(self, agent: Agent, turn: int, to: str, text: str) -> Outcome:
        others = [name for name in self.agents if name != agent.name]
        if to not in others:
            return Outcome(render("team/unknown_agent", to=to, names=others), failed=True)
        self._mail(agent.name, self.agents[to], text, turn)
        return Outcome(render("team/delivered", to=to))

    def _mail(self, sender: str, to: Agent, text: str, turn: int | None = None) -> None:
        self.event(sender, "mail", turn, to=to.name, text=text)
        to.heard = text
        to.inbox.append(render("team/mail", sender=sender, text=clip(text)))

    def _spent(self, agent: Agent) -> StopReason | None:
        """The budget that the agent has used up, if any."""
        if len(agent.turns) >= self._max_turns:
            return "turn_budget"
        sampled = sum(len(turn.output_ids or ()) for turn in agent.turns)
        return "token_budget" if sampled >= self._budget.output_tokens else None

    def _check_budget(self, agent: Agent) -> None:
        spent = self._spent(agent)
        if spent is None or self.stop_reason is not None:
            return
        if agent is self._lead:
            self.stop_reason = spent
        elif agent.active:
            self._mail(agent.name, self._lead, render("team/out_of_turns"))
        agent.active = False

    def _deliver(self) -> None:
        """Hand out results and mail: to active agents always, to idle ones when there is mail, which wakes them."""
        if self.stop_reason is not None:
            return
        for agent in self.agents.values():
            if self._spent(agent) or not (agent.inbox or (agent.active and agent.pending)):
                continue
            if not agent.active:
                agent.active = True
                self.event(agent.name, "wake", len(agent.turns))
            self._observe(agent)
        if not any(agent.active for agent in self.agents.values()):
            self._stalls += 1
            if self._stalls > _MAX_STALLS:
                self.stop_reason = "stalled"
                return
            self._lead.active = True
            self._lead.inbox.append(render("team/nobody_works"))
            self._observe(self._lead)

    def _observe(self, agent: Agent) -> None:
        agent.messages.append(ChatMessage(role="user", content="\n".join([*agent.pending, *agent.inbox])))
        agent.pending, agent.inbox = [], []


def _turn(agent: Agent, reply: Reply, parsed: Parsed, outcomes: Sequence[Outcome]) -> Turn:
    return Turn(
        index=len(agent.turns),
        message=len(agent.messages) - 1,
        actions=list(parsed.actions),
        parse_error=parsed.error,
        slip=reply.slip,
        failed=len(outcomes) < len(parsed.actions) or any(o.failed for o in outcomes),
        finish_reason=reply.finish_reason,
        prompt_ids=None if reply.prompt_ids is None else list(reply.prompt_ids),
        output_ids=None if reply.output_ids is None else list(reply.output_ids),
        logprobs=None if reply.logprobs is None else list(reply.logprobs),
        policy_version=reply.policy_version,
        command_s=sum(o.wall_s for o in outcomes),
    )


async def _all(policy: Policy, agents: Sequence[Agent]) -> list[Reply]:
    """Every agent's reply; when one fails, the first failure, after all have ended."""
    replies = await asyncio.gather(*(policy.reply(agent) for agent in agents), return_exceptions=True)
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return [reply for reply in replies if isinstance(reply, Reply)]
