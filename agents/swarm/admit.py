"""Whether a task may enter the table: it can be solved, is not solved already and does not give its answer away.

Called by the task stage.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from agents.environments.leaks import visible_answers
from agents.sandbox.base import Limits, Sandbox, SandboxPool
from agents.swarm.actions import SANDBOX_TOOLS, perform
from agents.swarm.subgroup import ATTEMPTS
from agents.swarm.verify import prepare, verify
from schemas.errors import SandboxCrashed, SandboxDied, SandboxExpired
from schemas.ids import derive_seed
from schemas.task import Task

Reason = Literal[
    "malformed", "answer_visible", "passes_untouched", "broken_before", "blueprint_fails", "blueprint_stumbles",
    "sandbox_ends",
]  # fmt: skip
_Trial = Callable[[Task, SandboxPool, Limits], Awaitable[list["Reject"]]]


@dataclass(frozen=True)
class Reject:
    """Why a task is refused: a reason to group by, and what exactly."""

    reason: Reason
    detail: str


def _bad_paths(task: Task) -> list[str]:
    paths = [spec.path for spec in task.workspace]
    odd = [p for p in paths if not p or PurePosixPath(p).is_absolute() or ".." in PurePosixPath(p).parts or "\0" in p]
    return odd + sorted({p for p in paths if paths.count(p) > 1})


def structural(task: Task) -> list[Reject]:
    """What is wrong with a task without running anything."""
    check, steps = task.verification, task.blueprint
    faults = [f"workspace path {path!r}" for path in _bad_paths(task)]
    names = [*check.fail_to_pass, *check.pass_to_pass]
    if not check.fail_to_pass or len(set(names)) < len(names):
        faults.append("verification points are missing or repeated")
    if not steps or steps[-1].action.tool != "submit" or steps[-1].phase != "submit":
        faults.append("the blueprint does not end with submit")
    tools = {step.action.tool for step in steps[:-1]} - set(SANDBOX_TOOLS)
    if tools:
        faults.append(f"the blueprint uses {', '.join(sorted(tools))}")
    if len(steps) > task.budget.turns:
        faults.append(f"{len(steps)} reference actions, {task.budget.turns} turns")
    if not task.instruction.strip() or not any(given.strip() for given in task.answer):
        faults.append("no instruction or no answer to look for")
    rejects = [Reject("malformed", fault) for fault in faults]
    seen = visible_answers(task.instruction, task.workspace, task.answer)
    return rejects + [Reject("answer_visible", given[:200]) for given in seen]


@asynccontextmanager
async def _opened(pool: SandboxPool, limits: Limits, task: Task) -> AsyncIterator[Sandbox]:
    sandbox = await pool.lease(limits)
    try:
        await prepare(sandbox, task)
        yield sandbox
    finally:
        await sandbox.close()


def _nonce(task: Task, name: str) -> str:
    # No agent is at work here, so nothing is gained by guessing it.
    return f"{derive_seed('admit', task.task_id, name):016x}"


async def _untouched(task: Task, pool: SandboxPool, limits: Limits) -> list[Reject]:
    async with _opened(pool, limits, task) as sandbox:
        points = await verify(sandbox, task, _nonce(task, "untouched"))
    done = [name for name in task.verification.fail_to_pass if points[name]]
    broken = [name for name in task.verification.pass_to_pass if not points[name]]
    rejects = [Reject("passes_untouched", ", ".join(done))] if done else []
    return rejects + ([Reject("broken_before", ", ".join(broken))] if broken else [])


async def _solved(task: Task, pool: SandboxPool, limits: Limits) -> list[Reject]:
    async with _opened(pool, limits, task) as sandbox:
        for number, step in enumerate(task.blueprint[:-1]):
            result = await perform(sandbox, step.action, task.budget.command_s)
            if result.failed and step.phase != "explore":
                return [Reject("blueprint_stumbles", f"step {number} ({step.phase}): {result.text[-300:]}")]
        points = await verify(sandbox, task, _nonce(task, "solved"))
    missed = [name for name, holds in points.items() if not holds]
    return [Reject("blueprint_fails", ", ".join(missed))] if missed else []


async def admit(task: Task, pool: SandboxPool, limits: Limits) -> list[Reject]:
    """Every reason against the task; empty means admitted. Sandboxes are only used for a well-formed task.

    The untouched workspace stands for the agent that does nothing. A try whose sandbox dies is made again; a task that
    ends its sandbox every time is refused, one that is lost every time raises SandboxLost.
    """
    rejects = structural(task)
    if rejects:
        return rejects
    tries = [_tried(run, task, pool, limits) for run in (_untouched, _solved)]
    untouched, solved = await asyncio.gather(*tries)
    return untouched + solved


async def _tried(run: _Trial, task: Task, pool: SandboxPool, limits: Limits) -> list[Reject]:
    for _ in range(ATTEMPTS - 1):
        with suppress(SandboxDied):
            return await run(task, pool, limits)
    try:
        return await run(task, pool, limits)
    except (SandboxCrashed, SandboxExpired) as error:
        return [Reject("sandbox_ends", type(error).__name__)]
