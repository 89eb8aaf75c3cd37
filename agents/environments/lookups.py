"""The family `lookups`: one fact about a file or folder, written to a file. Held out whole: no training set has it.

Tells whether what was learned from `errands` carries over. `build` is called by the task stage, `heldout` by the
measurement of training value. Every task is an evaluation task and draws from the evaluation side of the pools.
"""

import random

from agents.environments.errand_kinds import LOOKUPS
from agents.environments.errands import Family, shuffled, spread, wordings
from schemas.errors import ConfigError
from schemas.ids import derive_seed
from schemas.pattern import UsagePattern
from schemas.task import Task

FAMILY = "lookups"
LOOKUPS_FAMILY = Family(FAMILY, LOOKUPS)


def build(pattern: UsagePattern, seed: int, eval_share: float = 0.15) -> Task:
    """One lookup. Pure. `eval_share` has no effect, the whole family is for evaluation."""
    rng = random.Random(derive_seed(FAMILY, pattern.pattern_id, seed))  # noqa: S311
    kind = rng.choice(sorted(LOOKUPS))
    return LOOKUPS_FAMILY.task(pattern, "eval", rng.choice(wordings(FAMILY, kind)), seed)


def structure_of(task: Task) -> str:
    """As `errands.structure_of`."""
    return LOOKUPS_FAMILY.structure_of(task)


def values_of(task: Task) -> tuple[str, ...]:
    """As `errands.values_of`."""
    return LOOKUPS_FAMILY.values_of(task)


def heldout(count: int, seed: int, pattern: UsagePattern) -> list[Task]:
    """`count` tasks, each with a sentence of its own, round robin over kinds. ConfigError where sentences run out."""
    ids = spread({kind: shuffled(wordings(FAMILY, kind), FAMILY, kind, seed) for kind in LOOKUPS})
    if count > len(ids):
        raise ConfigError(f"lookups: {count} tasks wanted, there are {len(ids)} sentences")
    return [LOOKUPS_FAMILY.task(pattern, "eval", each, derive_seed(FAMILY, seed, each)) for each in ids[:count]]
