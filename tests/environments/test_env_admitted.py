"""Every kind of task is admitted by running it, and plays the same way twice."""

import asyncio

import pytest
from env_support import usage_pattern

from agents.environments import FAMILIES
from agents.sandbox.base import Limits
from agents.swarm.actions import perform
from agents.swarm.admit import admit
from agents.swarm.verify import prepare

KINDS = {"table_work": 5, "code_repair": 4, "file_chores": 5}
PATTERNS = [usage_pattern(*p) for p in (("short", "office"), ("medium", "customer_support"), ("long", "software"))]


def one_of_each_kind(family, first):
    found = {}
    for seed in range(first, first + 60):
        task = FAMILIES[family](PATTERNS[seed % 3], seed)
        found.setdefault(task.kind, task)
        if len(found) == KINDS[family]:
            break
    return list(found.values())


@pytest.mark.parametrize("family", KINDS)
def test_every_kind_is_admitted(sandboxes, family):
    async def run():
        tasks = one_of_each_kind(family, 100)
        assert len(tasks) == KINDS[family]
        async with sandboxes() as pool:
            return [(task.kind, task.wording_id, await admit(task, pool, Limits())) for task in tasks]

    assert [result for result in asyncio.run(run()) if result[2]] == []


@pytest.mark.parametrize("family", KINDS)
def test_reference_actions_show_the_same_text_twice(sandboxes, family):
    async def play(task):
        async with sandboxes() as pool:
            sandbox = await pool.lease(Limits())
            await prepare(sandbox, task)
            return [(await perform(sandbox, step.action, 10.0)).text for step in task.blueprint[:-1]]

    async def run():
        task = FAMILIES[family](PATTERNS[1], 11)
        return await play(task), await play(task)

    first, second = asyncio.run(run())
    assert first == second
    assert all(text.strip() for text in first[:1])
