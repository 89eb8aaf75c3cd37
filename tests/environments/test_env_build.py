"""Building is pure, steered by the pattern, and gives nothing away."""

import json
import random
import re

import pytest
from env_support import usage_pattern

from agents.environments import FAMILIES, code_repair
from agents.environments.code_repair_bugs import BUGS
from agents.environments.code_repair_cases import damaged, source_of
from agents.environments.leaks import visible_answers
from schemas.ids import content_id

SEEDS = range(16)
# Families that a pattern steers; errands and lookups are short and have their own tests.
STEERED = ("table_work", "code_repair", "file_chores")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_task(family):
    for seed in range(4):
        random.seed(seed)
        first = FAMILIES[family](usage_pattern(), seed)
        random.seed(99)
        assert FAMILIES[family](usage_pattern(), seed) == first
        assert first.task_id == content_id("task", first.model_dump(exclude={"task_id", "split"}))


@pytest.mark.parametrize("family", STEERED)
def test_tasks_are_distinct_varied_and_do_not_leak(family):
    tasks = [FAMILIES[family](usage_pattern(), seed) for seed in SEEDS]
    assert len({task.task_id for task in tasks}) == len(tasks)
    assert len({task.instruction for task in tasks}) == len(tasks)
    assert len({task.kind for task in tasks}) >= 4
    assert {task.style for task in tasks} == {"terse", "vague", "formal", "context"}
    for task in tasks:
        assert task.environment == family and task.kind.startswith(f"{family}/")
        assert visible_answers(task.instruction, task.workspace, task.answer) == []
        assert len(task.blueprint) <= task.budget.turns


@pytest.mark.parametrize("family", STEERED)
def test_blueprints_look_before_they_work_and_check_more_with_more_effort(family):
    for seed in SEEDS:
        steps = FAMILIES[family](usage_pattern(), seed).blueprint
        phases = [step.phase for step in steps]
        assert phases[0] == "explore" and phases[-1] == "submit"
        assert phases == sorted(phases, key=["explore", "work", "check", "submit"].index)
        assert all(step.min_effort == 1 for step in steps if step.phase in ("work", "submit"))
        lengths = [sum(step.min_effort <= effort for step in steps) for effort in (1, 50, 75, 100)]
        assert lengths == sorted(lengths) and lengths[1] < lengths[2] < lengths[3]
        commands = [json.loads(s.action.arguments_json).get("command", "") for s in steps]
        assert not any(re.search(r"(^|[;|&(] *)(date|sqlite3|ls -\w*l|ps|du)\b|\$\$", c) for c in commands)


def test_the_pattern_steers_length_and_slips():
    short, long = (FAMILIES["table_work"](usage_pattern(length), 3) for length in ("short", "long"))
    assert len(short.workspace[0].content) < len(long.workspace[0].content)
    assert short.budget.turns <= long.budget.turns
    assert FAMILIES["table_work"](usage_pattern(errors=0), 3).slip_rate == 0
    assert 0 < FAMILIES["table_work"](usage_pattern("long", errors=1), 3).slip_rate < 0.1
    assert FAMILIES["table_work"](usage_pattern("short", errors=64), 3).slip_rate == 0.35


@pytest.mark.parametrize("module", sorted({bug.module for bug in BUGS}))
def test_every_bug_shows_and_its_fix_is_nowhere_to_be_seen(module):
    for bug in (bug for bug in BUGS if bug.module == module):
        draft = code_repair.draft(random.Random(7), bug, "bug_report", 1)
        assert visible_answers("", draft.workspace, draft.answer) == [], bug
        assert damaged(bug) in [spec.content for spec in draft.workspace]
        assert damaged(bug) != source_of(module)


def test_bug_kinds_and_packages_are_many():
    assert len({bug.module for bug in BUGS}) >= 8
    assert len({bug.kind for bug in BUGS}) >= 7
