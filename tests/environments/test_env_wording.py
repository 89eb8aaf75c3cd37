"""Wordings: many, distinct, complete, and a fixed share of them reserved."""

import itertools
import random
import re

import pytest
from env_support import usage_pattern

from agents.environments import chores_kinds, code_repair, file_chores, table_kinds, table_work, wording

KINDS = [
    *((table_work, kind) for kind in table_kinds.KINDS),
    *((code_repair, kind) for kind in code_repair.KINDS),
    *((file_chores, kind) for kind in chores_kinds.KINDS),
]


def draft_of(module, kind, first=0):
    """The first draft of that kind, over seeds."""
    pattern = usage_pattern()
    drafts = (module.draw(random.Random(seed), pattern) for seed in itertools.count(first))
    return next(draft for draft in drafts if draft.kind == kind)


def all_wordings(family, draft):
    for style in wording.STYLES:
        counts = wording.choices(family, draft.kind, style, draft.values)
        for picks in itertools.product(*map(range, counts.values())):
            yield wording.compose(family, draft.kind, style, dict(zip(counts, picks, strict=True)), draft.values)


def normalised(text, draft):
    values = sorted({str(v) for v in draft.values.values() if v not in ("", [])} | set(draft.needed), key=len)
    for value in reversed(values):
        text = text.replace(value, "<value>")
    return re.sub(r"\W+", " ", text.lower()).strip()


@pytest.mark.parametrize(("module", "kind"), KINDS, ids=lambda p: p if isinstance(p, str) else "")
def test_wordings_are_many_distinct_and_complete(module, kind):
    draft = draft_of(module, kind)
    found = list(all_wordings(module.FAMILY, draft))
    by_style = {style: {normalised(w.text, draft) for w in found if w.style == style} for style in wording.STYLES}
    assert sum(map(len, by_style.values())) >= 100
    # Openers and closings aside, what is asked is put in at least 20 ways.
    cores = {w.text for w in found if re.search(r":o0-r\d+-d\d+-c0-s\d+$", w.wording_id) and not w.text.startswith("{")}
    assert len({normalised(text, draft) for text in cores}) >= 20
    # One name per text, or a text could be in both splits.
    assert len({w.wording_id for w in found}) == len({w.text for w in found}) == len(found)
    for worded in found:
        wanted = [str(draft.values["notes"])] if worded.style == "vague" else draft.needed
        assert [n for n in wanted if n not in worded.text] == [], worded
        assert "{{" not in worded.text


@pytest.mark.parametrize(("module", "kind"), KINDS, ids=lambda p: p if isinstance(p, str) else "")
def test_notes_say_all_that_a_vague_instruction_leaves_out(module, kind):
    for seed in range(6):
        draft = draft_of(module, kind, first=seed * 100)
        text = wording.notes(random.Random(seed), module.FAMILY, kind, draft.values)
        assert [n for n in draft.needed if n not in text] == []


def test_a_fixed_share_of_wordings_is_reserved():
    names = {w.wording_id for m, kind in KINDS for w in all_wordings(m.FAMILY, draft_of(m, kind))}
    reserved = sum(wording.split_of(name, 0.15) == "eval" for name in names)
    assert 0.13 < reserved / len(names) < 0.17
    assert {wording.split_of(name, 0.0) for name in names} == {"train"}
    assert {wording.split_of(name, 1.0) for name in names} == {"eval"}


def test_a_wording_belongs_to_one_split_whatever_the_values():
    split = {}
    for seed in range(120):
        task = file_chores.build(usage_pattern(), seed)
        assert split.setdefault(task.wording_id, task.split) == task.split
        assert task.split == wording.split_of(task.wording_id, 0.15)


def test_an_instruction_says_how_a_time_is_written_where_there_is_one_and_only_there():
    seen = set()
    for seed in range(300):
        task = file_chores.build(usage_pattern(), seed)
        if task.kind == "file_chores/extract":
            said = task.instruction + "".join(f.content for f in task.workspace if "app.log" not in f.path)
            asked = re.search("time,(user|service)", said) is not None
            seen.add((asked, task.style))
            assert ("HH:MM:SS" in said) == asked, task.wording_id
    assert len(seen) == 8
