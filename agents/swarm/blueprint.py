"""The blueprint policy: plays a task's reference actions as role-specific turns through a scaffold, in a real sandbox.

Synthetic by nature, and labelled so in every episode's provenance: no model chose these actions. In a team, teammate_1
surveys, teammate_2 looks on and plays everything up to the last change, the reviewer the checks after it, and the lead
delegates, waits and submits.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from types import MappingProxyType

from agents.scaffolds.base import Scaffold
from agents.swarm.policy import Agent, Reply
from agents.swarm.slips import Move, with_slips
from agents.swarm.spec import EpisodeSpec
from prompts import render
from schemas.ids import derive_seed
from schemas.task import Action, BlueprintStep, Task

_QUOTED_COMMAND = 240
_QUOTED_OUTPUT = 600
_QUOTED_REPORT = 2000
"""Characters of one command, one output and one report that a message quotes."""


@dataclass(frozen=True)
class _Parts:
    explore: list[BlueprintStep]
    work: list[BlueprintStep]
    check: list[BlueprintStep]
    submit: BlueprintStep


def _divide(steps: list[BlueprintStep], effort: int) -> _Parts:
    played = [step for step in steps if step.min_effort <= effort]
    doing, submit = played[:-1], played[-1]
    explore = list(takewhile(lambda step: step.phase == "explore", doing))
    last = max((i for i, step in enumerate(doing) if step.phase == "work"), default=len(explore) - 1)
    check = doing[last + 1 :] or [step for step in steps if step.phase == "check"][:1]
    # A step in the middle of an odd number is played by both.
    first, second = explore[: (len(explore) + 1) // 2], explore[len(explore) // 2 :]
    return _Parts(first, [*second, *doing[len(explore) : last + 1]], check, submit)


def _moves(steps: list[BlueprintStep]) -> list[Move]:
    return [Move(step.thought, step.action) for step in steps]


def _head(text: str, limit: int) -> str:
    """The text, or its first whole lines and dots: nobody who reports counts the characters left out."""
    if len(text) <= limit:
        return text
    whole = text.rfind("\n", 0, limit)
    return f"{text[: whole if whole > 0 else limit]}\n..."


def _command(action: Action) -> str:
    arguments = json.loads(action.arguments_json)
    text = arguments["command"] if action.tool == "bash" else f"{action.tool} {arguments['path']}"
    return _head(text, _QUOTED_COMMAND)


def _quotations(agent: Agent, part: str) -> list[dict[str, str]]:
    """Commands and outputs that a report quotes: all of them, but only the last one of work; never a slip's."""
    ran = [
        {"command": _command(action), "output": _head(text.strip(), _QUOTED_OUTPUT)}
        for turn, action, text in agent.seen
        if not agent.turns[turn].slip
    ]
    return ran[-1:] if part == "work" else ran


def _action(tool: str, **arguments: str) -> Action:
    return Action(tool=tool, arguments_json=json.dumps(arguments, ensure_ascii=False))


class BlueprintPolicy:
    """Plays one episode. Deterministic: the moves follow from task and spec, the quotations from the observations.

    `shared` counts the turns by agent that its subgroup played before this repeat branched: up to there its script is
    that of repeat 0.
    """

    def __init__(
        self, spec: EpisodeSpec, task: Task, scaffold: Scaffold, shared: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self._task, self._scaffold, self._shared = task, scaffold, shared
        self._effort = spec.provenance.effort
        self._seed, self._prefix_seed = spec.provenance.seed, spec.prefix_seed
        self._script = self._team() if spec.provenance.layout == "team" else {"solo": self._solo()}

    async def reply(self, agent: Agent) -> Reply:
        """The agent's next move as text."""
        move = self._script[agent.name][len(agent.turns)]
        action = move.action if move.report is None else self._fill(move, agent)
        write = self._scaffold.write_garbled if move.slip == "form" else self._scaffold.write
        return Reply(write(move.thought, action), slip=move.slip is not None)

    def end(self) -> None:
        """Nothing is kept."""

    def _solo(self) -> list[Move]:
        return self._slipping("solo", [s for s in self._task.blueprint if s.min_effort <= self._effort])

    def _rng(self, name: str, turn: int) -> random.Random:
        """Draws for the move of an agent that is played in its turn `turn`."""
        seed = self._prefix_seed if turn < self._shared.get(name, 0) else self._seed
        return random.Random(derive_seed(seed, "moves", name, turn))  # noqa: S311

    def _slipping(self, name: str, steps: list[BlueprintStep], extra: int = 0) -> list[Move]:
        moves = _moves(steps)
        paths = sorted(spec.path for spec in self._task.workspace)
        most = self._task.budget.turns - len(moves) - extra
        rate, draws = self._task.slip_rate, partial(self._rng, name)
        return with_slips(moves, rate=rate, most=most, paths=paths, effort=self._effort, rng_at=draws)

    def _team(self) -> dict[str, list[Move]]:
        parts = _divide(self._task.blueprint, self._effort)
        script: dict[str, list[Move]] = {"lead": []}
        for name, part, steps in (
            ("teammate_1", "explore", parts.explore),
            ("teammate_2", "work", parts.work),
            ("reviewer", "check", parts.check),
        ):
            if steps:
                script["lead"] += self._delegation(name, part, len(script["lead"]))
                doing = self._slipping(name, steps, extra=1)
                script[name] = [*doing, self._report(name, part, len(doing))]
        script["lead"].append(Move(parts.submit.thought, parts.submit.action))
        return script

    def _delegation(self, to: str, part: str, turn: int) -> list[Move]:
        first, second = (self._rng("lead", turn + i).randrange(60) for i in range(2))
        thought = render("blueprint/delegate_thought", part=part, n=first).strip()
        patience = render("blueprint/wait_thought", n=second)
        return [
            Move(thought, _action("send_message", to=to, text=""), report=part),
            Move(patience, _action("wait")),
        ]

    def _report(self, name: str, part: str, turn: int) -> Move:
        thought = render("blueprint/report_thought", n=self._rng(name, turn).randrange(60))
        return Move(thought, _action("submit", answer=""), report=part)

    def _fill(self, move: Move, agent: Agent) -> Action:
        part = move.report or ""
        n = derive_seed(self._task.task_id, part, agent.name) % 60
        if move.action.tool == "submit":
            text = render("blueprint/report", part=part, n=n, ran=_quotations(agent, part))
            return _action("submit", answer=text.strip())
        to = json.loads(move.action.arguments_json)["to"]
        instruction, heard = self._task.instruction, _head(agent.heard, _QUOTED_REPORT)
        text = render("blueprint/delegate", part=part, n=n, instruction=instruction, report=heard)
        return _action("send_message", to=to, text=text.strip())
