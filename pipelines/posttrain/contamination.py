"""Whether the shards that an arm was trained on give away its evaluation tasks. Called by the loop before it trains.

Words are runs of letters and digits in lower case; everything else counts as space. Of a script that writes no spaces,
whole runs are compared.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines import store
from pipelines.posttrain.examples import shard_files
from schemas.errors import InputError
from schemas.task import Task

NGRAM = 8
"""Words in a row that count as shared text."""
_KEPT = 20
_WORD = re.compile(r"[^\W_]+")

Words = tuple[str, ...]
# By length, the tasks that each sequence of words stands for.
_Index = Mapping[int, Mapping[Words, set[str]]]


@dataclass(frozen=True)
class Found:
    """(sample_id, task_id) pairs of one sort: how many, of how many samples, and the first 20 in the shards' order."""

    count: int
    samples: int
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Contamination:
    """What the samples of shards share with evaluation tasks. The first four are contamination, the others numbers.

    task_id       the sample is of the task
    instruction   the task's whole instruction stands in a message
    ngram         NGRAM words in a row of the instruction stand in a message
    wording       the sample's task has the same wording; None where the samples' tasks were not given
    structure     it has the same structure; None likewise
    value         the sample's request, its first user message, has a value that stands in the task's instruction
    """

    samples: int
    tasks: int
    task_id: Found
    instruction: Found
    ngram: Found
    wording: Found | None
    structure: Found | None
    value: Found

    @property
    def clean(self) -> bool:
        """Whether nothing was found that counts as contamination."""
        return not any(found and found.count for found in (self.task_id, self.instruction, self.ngram, self.wording))


def contamination(
    shards: Path,
    tasks: Sequence[Task],
    structure_of: Callable[[Task], str],
    values_of: Callable[[Task], Sequence[str]],
    trained: Iterable[Task] | None = None,
) -> Contamination:
    """Hold the `text` files of a run's `shards` folder against evaluation `tasks`.

    `trained`: the tasks that the samples are of; wordings and structures are known from them alone. One batch of rows
    is in memory at a time. Raises InputError for a file that is no shard of samples, which it names, for a sample
    whose task is not in `trained`, and for a task that stands twice or has no word.
    """
    if not tasks or len({task.task_id for task in tasks}) < len(tasks):
        raise InputError("evaluation tasks are wanted, each once")
    marks = _marks(tasks, values_of)
    related = None if trained is None else _related(tasks, trained, structure_of)
    tallies: dict[str, _Tally] = defaultdict(_Tally)
    samples = 0
    for sample in _samples(shards):
        samples += 1
        found = _shared(marks, sample)
        if related is not None:
            if sample["task_id"] not in related:
                raise InputError(f"{shards}: sample {sample['sample_id']} is of a task that is not among those given")
            found["wording"], found["structure"] = related[sample["task_id"]]
        for name, task_ids in found.items():
            tallies[name].add(sample["sample_id"], task_ids)
    return Contamination(
        samples=samples,
        tasks=len(tasks),
        task_id=tallies["task_id"].found(),
        instruction=tallies["instruction"].found(),
        ngram=tallies["ngram"].found(),
        wording=None if related is None else tallies["wording"].found(),
        structure=None if related is None else tallies["structure"].found(),
        value=tallies["value"].found(),
    )


@dataclass(frozen=True)
class _Marks:
    """What to look for.

    phrases   every NGRAM words in a row of an instruction, or all words of a shorter one
    starts    by an instruction's first phrase: all of it as " word word ", and its task
    values    the words of values
    """

    tasks: frozenset[str]
    phrases: _Index
    starts: Mapping[Words, list[tuple[str, str]]]
    values: _Index


def _marks(tasks: Sequence[Task], values_of: Callable[[Task], Sequence[str]]) -> _Marks:
    phrases: list[tuple[Words, str]] = []
    starts: dict[Words, list[tuple[str, str]]] = defaultdict(list)
    values: list[tuple[Words, str]] = []
    for task in tasks:
        words = _words(task.instruction)
        if not words:
            raise InputError(f"task {task.task_id} has no word in its instruction")
        grams = list(_grams(words, min(NGRAM, len(words))))
        starts[grams[0]].append((_spaced(words), task.task_id))
        phrases += ((gram, task.task_id) for gram in grams)
        given = (tuple(_words(value)) for value in values_of(task))
        values += ((value, task.task_id) for value in given if value and _spaced(value) in _spaced(words))
    return _Marks(frozenset(task.task_id for task in tasks), _index(phrases), starts, _index(values))


def _shared(marks: _Marks, sample: Mapping[str, Any]) -> dict[str, set[str]]:
    """Evaluation tasks by what they share with a sample's own id and messages."""
    ngram: set[str] = set()
    whole: set[str] = set()
    for message in sample["messages"]:
        words = _words(message["content"])
        phrases = _inside(marks.phrases, words)
        message_text = _spaced(words) if phrases else ""
        for phrase in phrases:
            if len(phrase) == NGRAM:
                ngram |= marks.phrases[NGRAM][phrase]
            whole.update(task_id for text, task_id in marks.starts.get(phrase, ()) if text in message_text)
    request = _words(next((message["content"] for message in sample["messages"] if message["role"] == "user"), ""))
    values = (marks.values[len(value)][value] for value in _inside(marks.values, request))
    return {
        "task_id": {sample["task_id"]} & marks.tasks,
        "instruction": whole,
        "ngram": ngram,
        "value": set().union(*values),
    }


def _related(
    tasks: Sequence[Task], trained: Iterable[Task], structure_of: Callable[[Task], str]
) -> dict[str, tuple[set[str], set[str]]]:
    """By trained task, the evaluation tasks of its wording and of its structure."""
    wordings: dict[str, set[str]] = defaultdict(set)
    structures: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        wordings[task.wording_id].add(task.task_id)
        structures[structure_of(task)].add(task.task_id)
    none: set[str] = set()
    return {
        task.task_id: (wordings.get(task.wording_id, none), structures.get(structure_of(task), none))
        for task in trained
    }


class _Tally:
    def __init__(self) -> None:
        self.count = self.samples = 0
        self.pairs: list[tuple[str, str]] = []

    def add(self, sample_id: str, task_ids: set[str]) -> None:
        self.count += len(task_ids)
        self.samples += bool(task_ids)
        if len(self.pairs) < _KEPT:
            self.pairs += [(sample_id, task_id) for task_id in sorted(task_ids)][: _KEPT - len(self.pairs)]

    def found(self) -> Found:
        return Found(self.count, self.samples, tuple(self.pairs))


def _samples(shards: Path) -> Iterator[dict[str, Any]]:
    for file in shard_files(shards, "text"):
        with store.open_part(file, "text") as part:
            try:
                for batch in part.iter_batches(store.READ_ROWS, columns=["sample_id", "task_id", "messages"]):
                    yield from batch.to_pylist()
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise InputError(f"{file}: {error}") from error


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _spaced(words: Sequence[str]) -> str:
    return f" {' '.join(words)} "


def _grams(words: Sequence[str], n: int) -> Iterator[Words]:
    return zip(*(islice(words, start, None) for start in range(n)), strict=False)


def _index(phrases: Iterable[tuple[Words, str]]) -> _Index:
    index: dict[int, dict[Words, set[str]]] = defaultdict(lambda: defaultdict(set))
    for words, task_id in phrases:
        index[len(words)][words].add(task_id)
    return index


def _inside(index: _Index, words: Sequence[str]) -> set[Words]:
    """The indexed phrases that stand in a text: one pass over it for each of their lengths."""
    return {gram for n, known in index.items() for gram in _grams(words, n) if gram in known}
