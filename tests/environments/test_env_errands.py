"""Errands and lookups: short requests that are admitted, worded in many ways, and split in three things at once."""

import asyncio
import itertools
import json
import re

import pytest
from env_support import usage_pattern
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.environments import FAMILIES, errands, lookups, wording
from agents.environments.errand_kinds import ERRANDS, LOOKUPS
from agents.environments.errand_pools import POOLS
from agents.environments.leaks import visible_answers
from agents.sandbox.base import Limits
from agents.swarm.admit import admit
from agents.swarm.verify import prepare, verify
from schemas.errors import ConfigError
from schemas.ids import content_id

PATTERN = usage_pattern("short")
KINDS = [*(("errands", kind) for kind in ERRANDS), *(("lookups", kind) for kind in LOOKUPS)]
VARIABLES = {
    "note": ("file", "text"),
    "append": ("file", "text"),
    "rename": ("file", "target"),
    "move": ("file", "folder"),
    "copy": ("file", "target"),
    "remove": ("file",),
    "folder": ("folder",),
    "replace": ("file", "old", "new"),
    "head": ("file", "n", "target"),
    "sort": ("file", "target"),
    "drop": ("file", "old"),
    "join": ("file", "other", "target"),
    "count": ("file", "target"),
    "last": ("file", "target"),
    "matching": ("file", "word", "target"),
    "names": ("folder", "target"),
}


@pytest.fixture(scope="module")
def samples():
    """Two tasks of every kind: one train and one held-out errand, two lookups."""
    count = len(ERRANDS)
    train = {task.kind: task for task in (errands.build(PATTERN, seed, 0.0) for seed in range(12 * count))}
    held = [*errands.heldout(count, "test", 2, PATTERN), *lookups.heldout(2 * len(LOOKUPS), 3, PATTERN)]
    return [*train.values(), *held]


def commands_points(sandboxes, task, commands):
    async def one(command):
        async with sandboxes() as pool:
            sandbox = await pool.lease(Limits())
            await prepare(sandbox, task)
            await sandbox.run(command, timeout_s=5)
            return await verify(sandbox, task, "5f1d77c0a3")

    async def run():
        return [await one(command) for command in commands]

    return asyncio.run(run())


def test_every_kind_is_admitted(sandboxes, samples):
    async def run():
        async with sandboxes() as pool:
            return [(task.kind, task.instruction, await admit(task, pool, Limits())) for task in samples]

    assert {task.kind for task in samples} == {f"{family}/{kind}" for family, kind in KINDS}
    assert [result for result in asyncio.run(run()) if result[2]] == []


def reference(task):
    arguments = json.loads(task.blueprint[0].action.arguments_json)
    return arguments.get("command") or f"printf '%s' '{arguments['content']}' > {arguments['path']}"


def test_a_changed_bystander_fails(sandboxes, samples):
    for task in samples[:: len(samples) // 6]:
        params = next(spec for spec in task.verification.files if spec.path == "params.json").content
        kept = sorted(json.loads(params)["points"]["others_kept"]["files"])
        # A bystander is any file that the reference action leaves alone.
        spoiled, deleted = commands_points(
            sandboxes, task, [f"{reference(task)}; echo x >> {kept[0]}", f"{reference(task)}; rm {kept[-1]}"]
        )
        assert not spoiled.pop("others_kept") and all(spoiled.values()), task.kind
        assert not deleted["others_kept"], task.kind


def test_near_misses_fail(sandboxes, samples):
    of = {task.kind.split("/")[1]: task for task in samples}
    words = {kind: json.loads(task.blueprint[0].action.arguments_json) for kind, task in of.items()}
    folder = words["folder"]["command"].split()[-1]
    moved = words["move"]["command"].split()[1:]
    note = words["note"]["path"]
    cheats = {
        "folder": [f"mkdir -p $(dirname {folder}); ln -s / {folder}", f"mkdir -p $(dirname {folder}); : > {folder}"],
        "move": [f"cp {moved[0]} {moved[1]}", f"rm {moved[0]}"],
        "note": [f"mkdir -p $(dirname {note}); : > {note}", f"mkdir -p $(dirname {note}); echo other > {note}"],
        "append": [words["append"]["command"].replace(">>", ">")],
        "count": [re.sub(r"wc -l < \S+", "echo 77", words["count"]["command"])],
    }
    for kind, commands in cheats.items():
        for points in commands_points(sandboxes, of[kind], commands):
            assert not all(points[name] for name in of[kind].verification.fail_to_pass), kind


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_sentences_are_many_distinct_and_complete(family, kind):
    values = {name: f"<{name}>" for name in VARIABLES[kind]}  # StrictUndefined: a sentence uses no other
    lines = wording.sections(f"environments/{family}/{kind}", values)
    assert set(lines) == {"request.terse", "request.formal", "request.context"}
    found = [line for section in lines.values() for line in section]
    assert len(found) >= (70 if family == "errands" else 20)
    bare = [re.sub(r"\W+", " ", line.lower()).strip() for line in found]
    assert len(set(bare)) == len(bare), sorted(line for line in bare if bare.count(line) > 1)
    for line in found:
        assert [value for value in values.values() if value not in line] == [], line
        assert 6 <= len(line.split()) <= 35, line
        assert "{" not in line and not ({"<text>", "<old>", "<new>", "<word>"} & set(line.split())), line


def test_pools_are_large_and_share_nothing():
    least = {"stems": 60, "texts": 40, "words": 40, "folders": 20}
    for pool, sides in POOLS.items():
        assert all(len(side) >= least[pool] and len(set(side)) == len(side) for side in sides.values()), pool
        assert set(sides["train"]).isdisjoint(sides["eval"]), pool
    single = [value for pool in ("stems", "folders", "words") for side in POOLS[pool].values() for value in side]
    assert len(set(single)) == len(single)
    words = [word for side in POOLS["words"].values() for word in side]
    # Otherwise replacing or looking for one word would touch another, and order would depend on the locale.
    assert [(a, b) for a, b in itertools.permutations(words, 2) if a in b] == []


@pytest.fixture(scope="module")
def train():
    return [errands.build(PATTERN, seed, eval_share=0.0) for seed in range(900)]


@pytest.fixture(scope="module")
def held():
    return {part: errands.heldout(count, part, 6, PATTERN) for part, count in (("dev", 70), ("test", 220))}


def facts(tasks):
    return (
        {task.wording_id for task in tasks},
        {value for task in tasks for value in errands.values_of(task)},
        {errands.structure_of(task) for task in tasks},
    )


def test_held_out_tasks_share_no_wording_value_or_structure_with_training(train, held):
    seen = facts(train)
    for tasks in held.values():
        assert all(ours.isdisjoint(theirs) for ours, theirs in zip(seen, facts(tasks), strict=True))
        assert {task.split for task in tasks} == {"eval"}
        assert {task.kind for task in tasks} == {f"errands/{kind}" for kind in ERRANDS}
        assert len({task.wording_id for task in tasks}) == len(tasks)
    assert facts(held["dev"])[0].isdisjoint(facts(held["test"])[0])
    for task in lookups.heldout(80, 7, PATTERN):
        assert seen[1].isdisjoint(lookups.values_of(task)) and lookups.structure_of(task).startswith(task.kind)


def test_training_meets_every_kind_and_hardly_repeats_a_request(train):
    assert {task.split for task in train} == {"train"}
    assert {task.kind for task in train} == {f"errands/{kind}" for kind in ERRANDS}
    assert len({task.instruction for task in train}) > 0.99 * len(train)
    assert len(facts(train)[0]) > 0.8 * sum(len(errands.wordings_of(kind, "train")) for kind in ERRANDS)


def test_running_out_of_sentences_is_an_error():
    with pytest.raises(ConfigError, match="errands: 9999 held-out tasks wanted"):
        errands.heldout(9999, "test", 1, PATTERN)
    with pytest.raises(ConfigError, match="lookups: 9999 tasks wanted"):
        lookups.heldout(9999, 1, PATTERN)
    assert len(lookups.heldout(80, 1, PATTERN)) == 80


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 2**40), st.sampled_from([0.15, 0.5]))
def test_build_obeys_the_split(one, two, share):
    parts = [errands.build(PATTERN, seed, share) for seed in (one, two)]
    parts += [errands.build(PATTERN, one, 0.0), errands.build(PATTERN, two, 1.0)]
    assert [task.split for task in parts[2:]] == ["train", "eval"]
    for task in parts:
        kind = errands.kind_of(task.wording_id)
        assert task.wording_id in errands.wordings_of(kind, task.split)
        other = "train" if task.split == "eval" else "eval"
        assert not {value for sides in POOLS.values() for value in sides[other]} & set(errands.values_of(task))
        depths = ERRANDS[kind]
        ours = {f"{task.kind}|{structure.key}" for structure in depths.structures(kind, task.split)}
        theirs = {f"{task.kind}|{structure.key}" for structure in depths.structures(kind, other)}
        assert errands.structure_of(task) in ours and ours.isdisjoint(theirs)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**40), st.sampled_from(["errands", "lookups"]))
def test_tasks_are_pure_short_and_do_not_leak(seed, family):
    task = FAMILIES[family](PATTERN, seed)
    assert FAMILIES[family](PATTERN, seed) == task
    assert task.task_id == content_id("task", task.model_dump(exclude={"task_id", "split"}))
    assert visible_answers(task.instruction, task.workspace, task.answer) == []
    assert [step.phase for step in task.blueprint] == ["work", "submit"]
    assert 3 <= len(task.workspace) <= 6 and task.slip_rate == 0
    assert family == "errands" or task.split == "eval"
    module = {"errands": errands, "lookups": lookups}[family]
    shown = task.instruction + "".join(f"{spec.path}\n{spec.content}" for spec in task.workspace)
    assert [value for value in module.values_of(task) if value not in shown] == []
