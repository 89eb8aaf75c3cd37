"""The tasks that a loop holds out, and the check that no shard has them. Called by the loop."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from agents.environments import errands, lookups
from agents.environments.errand_kinds import ERRANDS, LOOKUPS
from pipelines import store
from pipelines.files import write_text
from pipelines.folder import RunFolder
from pipelines.posttrain.contamination import contamination
from schemas.errors import ConfigError, StageError
from schemas.pattern import UsagePattern
from schemas.posttrain import LoopSettings
from schemas.task import Task

_FAMILIES = {"errands": errands.ERRANDS_FAMILY, "lookups": lookups.LOOKUPS_FAMILY}

Sets = Mapping[str, Sequence[Task]]
"""Held-out tasks by set: `test` for the table, `dev` for choices, `transfer` of an environment that no training saw."""


def check_sizes(settings: LoopSettings) -> None:
    """ConfigError, naming the field, where more tasks are asked for than there are sentences."""
    there = {
        "test_tasks": sum(len(errands.wordings_of(kind, "eval", "test")) for kind in ERRANDS),
        "dev_tasks": sum(len(errands.wordings_of(kind, "eval", "dev")) for kind in ERRANDS),
        "transfer_tasks": sum(len(errands.wordings(lookups.FAMILY, kind)) for kind in LOOKUPS),
    }
    for field, most in there.items():
        if getattr(settings, field) > most:
            raise ConfigError(f"{field}: {getattr(settings, field)} asked for, there are {most} sentences")


def held_out(settings: LoopSettings, run: RunFolder) -> Sets:
    """The sets, from the first pattern of a run: errands do not depend on it, but a task names one."""
    pattern = min(store.read_records(run.path, "patterns", UsagePattern), key=lambda p: p.pattern_id)
    return {
        "test": errands.heldout(settings.test_tasks, "test", 0, pattern),
        "dev": errands.heldout(settings.dev_tasks, "dev", 0, pattern),
        "transfer": lookups.heldout(settings.transfer_tasks, 0, pattern),
    }


def check_contamination(run: RunFolder, sets: Sets) -> None:
    """Write what a run's shards share with the sets; StageError when that is more than structures and values."""
    trained = list(store.read_records(run.path, "tasks", Task))
    found = {
        name: contamination(run.shards, tasks, _structure_of, _values_of, trained)
        for name, tasks in sets.items()
        if tasks
    }
    path = run.path / "contamination.json"
    write_text(path, json.dumps({name: asdict(each) for name, each in found.items()}, indent=1) + "\n")
    if dirty := [name for name, each in found.items() if not each.clean]:
        raise StageError(f"{run.shards}: holds tasks of the sets {', '.join(dirty)}; {path} says which")


def _structure_of(task: Task) -> str:
    family = _FAMILIES.get(task.environment)
    return family.structure_of(task) if family else task.kind


def _values_of(task: Task) -> tuple[str, ...]:
    return _FAMILIES[task.environment].values_of(task)
