"""Task families: build(pattern, seed, eval_share) -> Task. Called by the task stage."""

from collections.abc import Callable

from agents.environments import code_repair, errands, file_chores, lookups, table_work
from schemas.task import Task

FAMILIES: dict[str, Callable[..., Task]] = {
    "table_work": table_work.build,
    "code_repair": code_repair.build,
    "file_chores": file_chores.build,
    "errands": errands.build,
    "lookups": lookups.build,
}
