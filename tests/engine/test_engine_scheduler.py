"""Scheduling without a model: nothing is lost, counted twice or copied wrongly, over random schedules."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from agents.engine.base import Sampling
from agents.engine.scheduler import Scheduler
from agents.engine.sequence import Sequence, common_prefix


@dataclass(eq=False)
class Recorded:
    """A buffer that remembers which token was computed at each place."""

    capacity: int
    ids: list[int] = field(default_factory=list)

    def copy_from(self, other: "Recorded", length: int) -> None:
        assert len(other.ids) >= length
        self.ids = other.ids[:length]


def request(conversation: str, ids: list[int], limit: int) -> Sequence:
    return Sequence(
        conversation=conversation,
        ids=list(ids),
        prompt=len(ids),
        context=0,
        limit=limit,
        sampling=Sampling(limit),
        deliver=lambda outcome: None,
    )


def step(scheduler: Scheduler, step_tokens: int) -> list[Sequence]:
    """Do what runner and engine do, with token 7 sampled every time; returns the sequences that ended."""
    slices = scheduler.schedule()
    assert sum(s.count for s in slices) <= step_tokens
    assert slices or not scheduler.running
    ended = []
    for part in slices:
        sequence = part.sequence
        buffer = sequence.kv
        assert isinstance(buffer, Recorded)
        buffer.ids = buffer.ids[: sequence.computed]
        buffer.ids += sequence.ids[sequence.computed : sequence.computed + part.count]
        sequence.computed += part.count
        # The invariant: a buffer holds exactly the tokens of its own sequence, wherever they were copied from.
        assert buffer.ids == sequence.ids[: sequence.computed]
        assert len(buffer.ids) <= buffer.capacity
        if not sequence.pending:
            sequence.ids.append(7)
            if len(sequence.output) == sequence.limit:
                ended.append(sequence)
    for sequence in ended:
        scheduler.finish(sequence)
    return ended


def counted(scheduler: Scheduler) -> int:
    running = sum(s.kv.capacity for s in scheduler.running if s.kv)
    return running + sum(b.kv.capacity for b in scheduler.blocks)


REQUEST = st.tuples(
    st.sampled_from("abcdefgh"),
    st.integers(0, 2),
    st.integers(0, 60),
    st.integers(0, 40),
    st.integers(1, 9),
)


@given(
    plan=st.lists(st.tuples(REQUEST, st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=25),
    budget=st.integers(150, 900),
    max_batch=st.integers(1, 6),
    chunk=st.integers(80, 200),
)
def test_random_schedules_conserve_tokens_and_finish(plan, budget, max_batch, chunk):
    scheduler = Scheduler(max_batch, budget, Recorded, step_tokens=chunk)
    assert chunk >= max_batch + 64
    added, cancelled, ended = [], [], []
    for (name, head, shared, own, limit), steps, cancel, release in plan:
        # Heads shared by conversations, then tokens of their own, as system prompts and tasks are.
        ids = [100 + head] * shared + [ord(name)] * own + [5]
        sequence = request(name, ids, limit)
        scheduler.add(sequence)
        added.append(sequence)
        for _ in range(steps):
            ended += step(scheduler, chunk)
            assert scheduler.blocks.allocated == counted(scheduler) <= budget
            assert len(scheduler.running) <= max_batch
        if cancel:
            sequence.cancelled = True
            cancelled.append(sequence)
        if release:
            scheduler.blocks.release(name)
    for _ in range(10_000):
        if not scheduler.busy:
            break
        ended += step(scheduler, chunk)
    assert not scheduler.busy
    assert set(ended) | set(cancelled) == set(added)
    assert len(ended) == len(set(ended))
    assert all(len(s.output) == s.limit for s in ended)
    assert scheduler.blocks.allocated == counted(scheduler) <= budget


def run(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        scheduler.add(sequence)
    while scheduler.busy:
        step(scheduler, 256)


def test_a_next_turn_computes_only_what_is_new():
    scheduler = Scheduler(4, 4000, Recorded)
    first = request("a", list(range(100)), 10)
    run(scheduler, first)
    second = request("a", [*first.ids, *range(200, 230)], 10)
    run(scheduler, second)
    # Everything but the last sampled token, whose keys and values were never needed.
    assert second.cached == 109


def test_requests_that_begin_alike_compute_the_beginning_once():
    scheduler = Scheduler(8, 8000, Recorded)
    head = list(range(300))
    requests = [request(f"c{i}", [*head, 1000 + i, 5], 4) for i in range(6)]
    run(scheduler, *requests)
    # In whole pieces of 64 tokens.
    assert [r.cached for r in requests] == [0, 256, 256, 256, 256, 256]
    late = request("late", [*head, 9, 9], 4)
    run(scheduler, late)
    assert late.cached == 256


def test_a_released_conversation_is_the_first_to_go():
    scheduler = Scheduler(4, 3 * 128, Recorded)
    run(scheduler, request("old", [1] * 50, 5))
    run(scheduler, request("new", [2] * 50, 5))
    scheduler.blocks.release("new")
    run(scheduler, request("third", [3] * 50, 5))
    run(scheduler, request("fourth", [4] * 50, 5))
    assert scheduler.blocks.take("old") is not None
    assert scheduler.blocks.take("new") is None


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30))
def test_common_prefix(a, b):
    length = common_prefix(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]
