"""Contamination that is planted is found, of each sort alone; tasks held out by construction are clean."""

import dataclasses
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from posttrain_parts import PATTERN, training

from agents.environments import errands
from pipelines import store
from pipelines.posttrain.contamination import Found, contamination
from schemas.episode import ChatMessage
from schemas.errors import InputError
from schemas.sample import TextRow
from schemas.tables import arrow_schema, to_arrow

TRAINED = training(200)
HELD = errands.heldout(60, "test", 2, PATTERN)


def sample(number: int, task_id: str, *contents: str) -> TextRow:
    """A row of these messages: system, user, assistant, and user and assistant again."""
    roles = ["system", *["user", "assistant"] * len(contents)]
    return TextRow(
        sample_id=f"s{number:04}",
        messages=[ChatMessage(role=role, content=text) for role, text in zip(roles, contents, strict=False)],
        tools="[]",
        message_mask=[role == "assistant" for role in roles[: len(contents)]],
        environment="errands",
        kind="errands/move",
        scaffold="bash_minimal",
        layout="solo",
        agent="solo",
        role="solo",
        effort=50,
        subgroup_id="g",
        repeat=0,
        policy="blueprint",
        model=None,
        passed=True,
        reward=1.0,
        advantage=None,
        episode_id="e",
        task_id=task_id,
        pattern_id="p",
    )


def shards_of(folder: Path, rows: list[TextRow], files: int = 2) -> Path:
    (folder / "text").mkdir(parents=True)
    size = -(-len(rows) // files)
    for i in range(files):
        name = f"train-{i:05d}-of-{files:05d}.parquet"
        store.write_parquet(folder / "text" / name, to_arrow("text", rows[i * size : (i + 1) * size]))
    return folder


def clean_rows() -> list[TextRow]:
    return [
        sample(i, task.task_id, "You are an agent at a computer.", task.instruction, "I do it.", "done", "Submitted.")
        for i, task in enumerate(TRAINED)
    ]


def check(shards, tasks=HELD, trained=TRAINED):
    return contamination(shards, tasks, errands.structure_of, errands.values_of, trained)


def counts(found) -> dict[str, int]:
    """What was found, but for values."""
    sorts = ("task_id", "instruction", "ngram", "wording", "structure")
    return {name: each.count for name in sorts if (each := getattr(found, name)) and each.count}


def test_what_is_held_out_is_clean(tmp_path):
    rows = clean_rows()
    found = check(shards_of(tmp_path / "two", rows))
    assert (found.samples, found.tasks, found.clean, counts(found)) == (200, 60, True, {})
    # A line to write in train and a file's stem in eval may share a word: "carry the boxes down", boxes.md.
    assert found.value.samples < 10
    assert check(shards_of(tmp_path / "seven", rows, 7)) == found
    untold = check(tmp_path / "two", trained=None)
    assert untold == dataclasses.replace(found, wording=None, structure=None)
    assert untold.clean


def planted(tmp_path, **changes):
    """One sample made worse; the counts and the pairs of its sorts."""
    rows = clean_rows()
    rows[150] = rows[150].model_copy(update=changes)
    found = check(shards_of(tmp_path / "s", rows), trained=[*TRAINED, *HELD])
    for name, count in counts(found).items():
        each = getattr(found, name)
        assert each.samples == 1 and {pair[0] for pair in each.pairs} == {"s0150"} and len(each.pairs) == count
    return found


def messages(*contents: str) -> list[ChatMessage]:
    return sample(0, "t", *contents).messages


def test_the_same_task_is_found_with_its_wording_and_structure(tmp_path):
    found = planted(tmp_path, task_id=HELD[7].task_id)
    assert found.task_id == found.wording == Found(1, 1, (("s0150", HELD[7].task_id),))
    assert ("s0150", HELD[7].task_id) in found.structure.pairs
    assert not found.clean
    assert not found.instruction.count


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_an_instruction_in_any_message_is_found_however_it_is_spelled(tmp_path, place):
    task = HELD[11]
    text = f"Earlier:\n> **{task.instruction.upper().replace(' ', '   ')}**!!\nand more"
    found = planted(tmp_path, messages=messages(*[text if i == place else "nothing" for i in range(4)]))
    assert ("s0150", task.task_id) in found.instruction.pairs
    assert not found.clean
    assert ("s0150" in {pair[0] for pair in found.value.pairs}) == (place == 1)


def test_eight_words_in_a_row_are_found_and_seven_are_not(tmp_path):
    task = HELD[0].model_copy(update={"instruction": "One two, three four: five six - seven eight nine ten."})
    for text, hits in (("x two three four five six seven eight nine y", 1), ("two three four five six seven eight", 0)):
        rows = [sample(0, "t", "s", text), sample(1, "t", "s", "u", text)]
        found = contamination(shards_of(tmp_path / str(hits), rows), [task], str, lambda task: ())
        assert (found.ngram.count, found.instruction.count, found.clean) == (2 * hits, 0, not hits)


def test_a_short_instruction_counts_as_whole_words_only(tmp_path):
    task = HELD[0].model_copy(update={"instruction": "Sort it."})
    rows = [sample(i, "t", "s", text) for i, text in enumerate(("resort it", "sort items", "SORT\nit now", "it sort"))]
    found = contamination(shards_of(tmp_path, rows), [task], str, lambda task: ())
    assert (found.instruction.pairs, found.ngram.count, found.clean) == ((("s0002", task.task_id),), 0, False)


def test_the_same_wording_alone_is_contamination_and_the_same_structure_is_not(tmp_path):
    rows = clean_rows()
    wording = [TRAINED[3].model_copy(update={"wording_id": HELD[0].wording_id}), *TRAINED[:3], *TRAINED[4:]]
    shards = shards_of(tmp_path / "s", rows)
    found = contamination(shards, HELD, lambda task: task.task_id, errands.values_of, wording)
    assert counts(found) == {"wording": 1}
    assert not found.clean
    found = contamination(shards, HELD, lambda task: "one", errands.values_of, TRAINED)
    assert counts(found) == {"structure": 200 * 60}
    assert found.structure.samples == 200
    assert [pair[0] for pair in found.structure.pairs] == ["s0000"] * 20
    assert found.clean


def test_values_count_in_the_request_where_they_stand_in_the_instruction(tmp_path):
    task = HELD[0].model_copy(update={"instruction": "Write water the ferns to lamp.md"})
    texts = ("go, Water the\tferns!", "water the fernss", "lamps", "a/lamp_2", "hidden")
    rows = [sample(i, "t", "s", text, "water the ferns", "lamp") for i, text in enumerate(texts)]
    values = ("water the ferns", "lamp", "hidden", "...")
    found = contamination(shards_of(tmp_path, rows), [task], str, lambda task: values)
    assert [pair[0] for pair in found.value.pairs] == ["s0000", "s0003"]
    assert found.clean


def test_hostile_text_is_read_in_linear_time(tmp_path):
    task = HELD[0].model_copy(update={"instruction": "a " * 40})
    texts = ["a " * 200_000, "", "\u0000\u202e\U0001f600" * 1000, "é" * 300_000, "İ_" * 100_000, "b\u0301" * 100_000]
    rows = [sample(i, "t", text) for i, text in enumerate(texts)] + [sample(9, "t")]
    shards = shards_of(tmp_path, rows)
    began = time.process_time()
    found = contamination(shards, [task, *HELD[1:]], errands.structure_of, errands.values_of)
    assert time.process_time() - began < 5
    assert [pair[0] for pair in found.instruction.pairs] == ["s0000"]


def test_what_cannot_be_checked_is_named(tmp_path):
    shards = shards_of(tmp_path / "s", clean_rows())
    for tasks, words in (
        ([], "each once"),
        ([HELD[0]] * 2, "each once"),
        ([HELD[0].model_copy(update={"instruction": "?"})], "no word"),
    ):
        with pytest.raises(InputError, match=words):
            check(shards, tasks)
    with pytest.raises(InputError, match="sample s0150 is of a task that is not"):
        check(shards, trained=TRAINED[:150])
    with pytest.raises(InputError, match="not the shards folder"):
        check(tmp_path)
    file = shards / "text" / "train-00001-of-00002.parquet"
    table = pq.read_table(file)
    pq.write_table(table.drop_columns(["messages"]), file)
    with pytest.raises(InputError, match="train-00001"):
        check(shards)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(InputError, match="train-00001"):
        check(shards)


def test_damage_inside_a_file_names_it(tmp_path):
    shards = shards_of(tmp_path / "s", clean_rows(), 1)
    file = shards / "text" / "train-00000-of-00001.parquet"
    data = bytearray(file.read_bytes())
    data[4:600] = bytes(596)
    file.write_bytes(data)
    assert pq.ParquetFile(file).schema_arrow.equals(arrow_schema("text"))
    with pytest.raises(InputError, match="train-00000"):
        check(shards)
