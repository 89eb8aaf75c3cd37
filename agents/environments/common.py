"""What all families share: actions and steps of blueprints, and turning a draft into a task."""

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal

from agents.environments import wording
from agents.environments.leaks import visible_answers
from schemas.errors import ConfigError
from schemas.ids import content_id, derive_seed
from schemas.pattern import UsagePattern
from schemas.pattern_views import LengthClass, length_class, slip_rate
from schemas.task import Action, BlueprintStep, Budget, FileSpec, Task, Verification

Phase = Literal["explore", "work", "check", "submit"]
_BUDGETS: dict[LengthClass, Budget] = {
    "short": Budget(turns=10, output_tokens=4096, command_s=20.0, episode_s=900.0),
    "medium": Budget(turns=14, output_tokens=6144, command_s=20.0, episode_s=900.0),
    "long": Budget(turns=18, output_tokens=8192, command_s=20.0, episode_s=900.0),
}
_ATTEMPTS = 40
_HIGHEST_SLIP_RATE = 0.35


@dataclass(frozen=True)
class Draft:
    """A task before its instruction is worded.

    `values` are the template variables of kind, notes and thoughts; `needed` are the strings without which nobody could
    produce the checked result.
    """

    kind: str
    values: dict[str, object]
    needed: list[str]
    workspace: list[FileSpec]
    verification: Verification
    steps: list[BlueprintStep]
    answer: list[str]


@dataclass
class Script:
    """Collects blueprint steps whose thoughts come from the family's templates."""

    rng: random.Random
    family: str
    values: Mapping[str, object]
    steps: list[BlueprintStep] = field(default_factory=list)

    def add(self, phase: Phase, key: str, action: Action, min_effort: int = 1) -> None:
        """Append a step; `key` names the section of `thoughts.j2`."""
        text = wording.thought(self.rng, self.family, key, self.values)
        self.steps.append(BlueprintStep(phase=phase, thought=text, action=action, min_effort=min_effort))


def _action(tool: str, **arguments: str) -> Action:
    return Action(tool=tool, arguments_json=json.dumps(arguments, ensure_ascii=False))


def bash(command: str) -> Action:
    """Run a command."""
    return _action("bash", command=command)


def read_file(path: str) -> Action:
    """Read a file."""
    return _action("read_file", path=path)


def write_file(path: str, content: str) -> Action:
    """Write a file."""
    return _action("write_file", path=path, content=content)


def submit(answer: str) -> Action:
    """Finish."""
    return _action("submit", answer=answer)


def verification(
    main: Literal["files", "code"], parameters: object, fail_to_pass: list[str], pass_to_pass: list[str]
) -> Verification:
    """A verification that runs `verifiers/<main>.py` with its parameters beside it."""
    beside = {"files": "workfiles.py", "code": "probe.py"}[main]
    scripts = {"verify.py": f"{main}.py", beside: beside}
    root = files("agents.environments.verifiers")
    specs = [FileSpec(path=path, content=(root / name).read_text(encoding="utf-8")) for path, name in scripts.items()]
    text = json.dumps(parameters, ensure_ascii=False, sort_keys=True)
    return Verification(
        files=[*specs, FileSpec(path="params.json", content=text)],
        command=["python3", "-I", "-S", "/verify/verify.py"],
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        timeout_s=60.0,
    )


def _budget(pattern: UsagePattern, steps: int) -> Budget:
    budget = _BUDGETS[length_class(pattern)]
    # Room for a slip and its recovery before about every second reference action.
    return budget.model_copy(update={"turns": max(budget.turns, math.ceil(1.6 * steps) + 2)})


def _with_notes(rng: random.Random, family: str, draft: Draft) -> Draft:
    name = str(draft.values["notes"])
    spec = FileSpec(path=name, content=wording.notes(rng, family, draft.kind, draft.values))
    action = rng.choice([bash(f"cat {name}"), read_file(name)])
    text = wording.thought(rng, family, "notes", draft.values)
    step = BlueprintStep(phase="explore", thought=text, action=action)
    steps = [step, *draft.steps]  # a vague request does not even say where to look
    return Draft(**{**draft.__dict__, "workspace": [*draft.workspace, spec], "steps": steps})


def build_task(
    family: str,
    pattern: UsagePattern,
    seed: int,
    eval_share: float,
    draw: Callable[[random.Random, UsagePattern], Draft],
) -> Task:
    """The first draft, over derived seeds, whose answer is not visible. Pure. ConfigError when none is found."""
    for attempt in range(_ATTEMPTS):
        rng = random.Random(derive_seed(family, pattern.pattern_id, seed, attempt))  # noqa: S311
        draft = draw(rng, pattern)
        style = rng.choice(wording.STYLES)
        if style == "vague":
            draft = _with_notes(rng, family, draft)
        worded = wording.pick(rng, family, draft.kind, style, draft.values)
        if not visible_answers(worded.text, draft.workspace, draft.answer):
            return _task(family, pattern, seed, eval_share, draft, worded)
    raise ConfigError(f"{family}: no task without a visible answer in {_ATTEMPTS} tries (seed {seed})")


def _task(
    family: str, pattern: UsagePattern, seed: int, eval_share: float, draft: Draft, worded: wording.Wording
) -> Task:
    task = Task(
        task_id="",
        environment=family,
        kind=f"{family}/{draft.kind}",
        pattern_id=pattern.pattern_id,
        seed=seed,
        split=wording.split_of(worded.wording_id, eval_share),
        wording_id=worded.wording_id,
        style=worded.style,
        instruction=worded.text,
        workspace=draft.workspace,
        verification=draft.verification,
        blueprint=draft.steps,
        answer=draft.answer,
        budget=_budget(pattern, len(draft.steps)),
        slip_rate=min(_HIGHEST_SLIP_RATE, slip_rate(pattern)),
    )
    return task.model_copy(update={"task_id": content_id("task", task.model_dump(exclude={"task_id", "split"}))})
