"""A scheduler without a model, over a memory that remembers which tokens were written where and checks all reads."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from agents.engine.base import Sampling
from agents.engine.scheduler import Scheduler, SchedulerMetrics, Slice, Step
from agents.engine.sequence import BLOCK, Sequence

Written = dict[tuple[int, int], tuple[int, int]]
"""(block, place) to (hash of all tokens up to and with the one there, version of the weights)."""


def request(conversation: str, ids: list[int], limit: int = 4, **more) -> Sequence:
    return Sequence(
        conversation=conversation,
        ids=list(ids),
        prompt=len(ids),
        context=more.pop("context", 0),
        limit=limit,
        sampling=Sampling(limit),
        deliver=lambda outcome: None,
        **more,
    )


@dataclass(eq=False)
class Recorder:
    """Plays worker and runner. `now` is the scheduler's clock, `version` that of the weights."""

    scheduler: Scheduler
    max_batch: int
    step_tokens: int
    window: int | None = None
    now: float = 0.0
    version: int = 0
    full: Written = field(default_factory=dict)
    sliding: Written = field(default_factory=dict)
    copies: int = 0
    prefilled: dict[Sequence, int] = field(default_factory=dict)
    done: list[Sequence] = field(default_factory=list)
    chains: dict[Sequence, list[int]] = field(default_factory=dict)

    @property
    def metrics(self) -> SchedulerMetrics:
        return self.scheduler.metrics

    def step(self) -> Step:
        """Schedule, run, advance and settle."""
        step = self.scheduler.schedule()
        assert len(self.scheduler.running) <= self.max_batch
        assert sum(part.count for part in step.slices) <= self.step_tokens
        assert len({part.sequence for part in step.slices}) == len(step.slices)
        copy(self.full, step.copies)
        copy(self.sliding, step.window_copies)
        self.copies += len(step.copies)
        self._check_writes(step)
        for part in step.slices:
            self._write(part)
        for part in step.slices:
            self._read(part)
        self.scheduler.advance(step)
        for part in step.slices:
            if not part.sequence.pending:
                self._settle(part.sequence)
        self.scheduler.audit()
        return step

    def run(self, *sequences: Sequence, steps: int = 3000) -> None:
        """Add sequences and step until nothing is left to do."""
        for sequence in sequences:
            self.scheduler.add(sequence)
        for _ in range(steps):
            if not self.scheduler.busy:
                return
            self.step()
        raise AssertionError("no end")

    def until(self, sequence: Sequence, tokens: int) -> None:
        """Step until a sequence has sampled that many tokens."""
        while len(sequence.output) < tokens:
            self.step()

    def flush(self) -> None:
        """New weights."""
        self.version += 1
        self.scheduler.flush()

    def saved(self, sequence: Sequence) -> list[tuple[bool, int, int, tuple[int, int]]]:
        """What `paused` would write to disk."""
        return [
            (memory is self.full, index, place, memory[block, place])
            for memory, table in ((self.full, sequence.table), (self.sliding, sequence.window))
            for index, block in enumerate(table)
            for place in range(min(BLOCK, sequence.computed - index * BLOCK))
            if block >= 0
        ]

    def restore(self, sequence: Sequence, saved: list[tuple[bool, int, int, tuple[int, int]]]) -> None:
        for full, index, place, value in saved:
            block = (sequence.table if full else sequence.window)[index]
            if block >= 0:
                (self.full if full else self.sliding)[block, place] = value

    def _settle(self, sequence: Sequence) -> None:
        """Sample a token that tells conversations apart, and sometimes one that a grammar forces after it."""
        sequence.ids.append(10 + len(sequence.conversation))
        if len(sequence.output) == 3 and sequence.limit > 4:
            sequence.ids.append(6)
        if len(sequence.output) >= sequence.limit:
            self.scheduler.finish(sequence)
            self.done.append(sequence)

    def _check_writes(self, step: Step) -> None:
        """What is written belongs to one sequence alone, and nobody could find it."""
        memory = self.scheduler._memory
        full = {(part.sequence, part.sequence.table[p // BLOCK]) for part in step.slices for p in written(part)}
        assert len({block for _, block in full}) == len(full)
        assert all(memory.pool.writable(block) for _, block in full)
        if self.window is not None:
            sliding = {part.sequence.window[p // BLOCK] for part in step.slices for p in positions(part)}
            assert all(memory.window_pool.writable(block) for block in sliding)

    def _write(self, part: Slice) -> None:
        sequence, chain = part.sequence, self._chain(part.sequence)
        assert part.count > 0
        assert part.start == sequence.computed
        for p in written(part):
            self.full[sequence.table[p // BLOCK], p % BLOCK] = chain[p], self.version
        if self.window is not None:
            for p in positions(part):
                self.sliding[sequence.window[p // BLOCK], p % BLOCK] = chain[p], self.version
        if part.start < sequence.prompt:
            self.prefilled[sequence] = self.prefilled.get(sequence, 0) + part.count

    def _read(self, part: Slice) -> None:
        """Every token sees exactly the tokens of its own sequence, of these weights unless it is mixed."""
        sequence, chain = part.sequence, self._chain(part.sequence)
        end = part.start + part.count
        found = [self.full[sequence.table[p // BLOCK], p % BLOCK] for p in range(end)]
        assert [tokens for tokens, _ in found] == chain[:end]
        assert sequence.mixed or all(version == self.version for _, version in found)
        if self.window is None:
            assert sequence.window == []
            return
        for token in positions(part):
            for p in range(max(0, token - self.window + 1), token + 1):
                block = sequence.window[p // BLOCK]
                if block >= 0:
                    tokens, version = self.sliding[block, p % BLOCK]
                    assert tokens == chain[p]
                    assert version == self.version or sequence.mixed
                else:
                    assert token < sequence.kept  # only what runs again may miss a part of its window
        behind = max(0, part.start - self.window + 1) // BLOCK
        assert all(block < 0 for block in sequence.window[:behind])

    def _chain(self, sequence: Sequence) -> list[int]:
        """For each token a hash of all up to and with it."""
        chain = self.chains.setdefault(sequence, [])
        for token in sequence.ids[len(chain) :]:
            chain.append(hash((chain[-1] if chain else 0, token)))
        return chain


def recorder(
    max_batch: int = 8, blocks: int = 400, *, step_tokens: int = 256, window: int | None = None, **more
) -> Recorder:
    scheduler = Scheduler(max_batch, blocks, step_tokens=step_tokens, window=window, clock=lambda: made.now, **more)
    made = Recorder(scheduler, max_batch, step_tokens, window)
    return made


def positions(part: Slice) -> range:
    return range(part.start, part.start + part.count)


def written(part: Slice) -> Iterator[int]:
    return (p for p in positions(part) if p >= part.sequence.kept)


def copy(memory: Written, copies: list[tuple[int, int]]) -> None:
    assert len({target for _, target in copies}) == len(copies)
    for source, target in copies:
        for place in range(BLOCK):
            memory.pop((target, place), None)
            if (source, place) in memory:
                memory[target, place] = memory[source, place]
