"""Sequences that wait, run or are paused, and the order among them. Called by `scheduler`; no torch.

Who goes first: the higher priority; then what has run before; then the owner that was served least (`fairness`); then
who came first. Who gives way first: the lowest priority, among equals the one that started last.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agents.engine.fairness import Fairness
from agents.engine.sequence import Sequence
from schemas.errors import EngineError


@dataclass
class Ticket:
    """A sequence's place in line: when it came, when it first started, whether it has had to drop its blocks."""

    came: int
    started: int | None = None
    dropped: bool = False


class Line:
    """Moves sequences between their states; EngineError when one is not in the state that a move starts from.

    `changed`: something happened after which another one might start. Whoever tried sets it back.
    """

    def __init__(self) -> None:
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.changed = False
        self._tickets: dict[Sequence, Ticket] = {}
        self._fairness = Fairness()
        self._numbers = 0

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._tickets)

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._tickets

    def join(self, sequence: Sequence) -> None:
        """A new one waits."""
        self._tickets[sequence] = Ticket(self._number())
        self._wait(sequence)

    def adopt(self, sequence: Sequence) -> None:
        """A paused one that has run elsewhere stays paused here."""
        self._tickets[sequence] = Ticket(self._number(), self._number())

    def resume(self, sequence: Sequence) -> None:
        """A paused one waits."""
        if sequence.state != "paused" or sequence not in self._tickets:
            raise EngineError("only a paused sequence of this scheduler can be resumed")
        self._wait(sequence)

    def start(self, sequence: Sequence) -> bool:
        """A waiting one runs. Returns whether it is the first time."""
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.state = "running"
        ticket = self._tickets[sequence]
        first = ticket.started is None
        if first:
            ticket.started = self._number()
        return first

    def stop(self, sequence: Sequence) -> None:
        """A running one waits."""
        self.running.remove(sequence)
        self.waiting.append(sequence)
        sequence.state = "waiting"

    def pause(self, sequence: Sequence) -> None:
        """A running or waiting one is paused."""
        if sequence.state == "paused" or sequence not in self._tickets:
            raise EngineError(f"a sequence that is {sequence.state} cannot be paused")
        self._take_out(sequence)
        sequence.state = "paused"

    def leave(self, sequence: Sequence) -> None:
        """It is over, whatever its state."""
        if sequence not in self._tickets:
            raise EngineError("the sequence is not of this scheduler, or is done")
        if sequence.state != "paused":
            self._take_out(sequence)
        del self._tickets[sequence]
        sequence.state = "done"
        self.changed = True

    def dropped(self, sequence: Sequence) -> bool:
        """Whether it has had to drop its blocks."""
        return self._tickets[sequence].dropped

    def mark_dropped(self, sequence: Sequence) -> None:
        """It has dropped its blocks."""
        self._tickets[sequence].dropped = self.changed = True

    def charge(self, sequence: Sequence, cost: int) -> None:
        """Count service for the owner of a running one; a negative cost is given back."""
        self._fairness.charge(_owner(sequence), cost)

    def first(self) -> Sequence:
        """The waiting one that goes first."""
        return min(self.waiting, key=self._order)

    def last(self, sequences: Iterable[Sequence]) -> Sequence:
        """Of some that have started, the one that gives way first."""
        return max(sequences, key=lambda s: (-s.priority, self._tickets[s].started or 0))

    def prompts(self) -> list[Sequence]:
        """Running ones whose prompt is not computed yet, the first to be served first."""
        prompts = [sequence for sequence in self.running if not sequence.replying]
        return sorted(prompts, key=lambda s: (-s.priority, self._served(s), self._tickets[s].started or 0))

    def _wait(self, sequence: Sequence) -> None:
        sequence.state = "waiting"
        self.waiting.append(sequence)
        self._fairness.enter(_owner(sequence))
        self.changed = True

    def _take_out(self, sequence: Sequence) -> None:
        (self.running if sequence.state == "running" else self.waiting).remove(sequence)
        self._fairness.leave(_owner(sequence))
        self.changed = True

    def _order(self, sequence: Sequence) -> tuple[int, bool, int, int]:
        ticket = self._tickets[sequence]
        if ticket.started is not None:
            return -sequence.priority, False, 0, ticket.started
        return -sequence.priority, True, self._served(sequence), ticket.came

    def _served(self, sequence: Sequence) -> int:
        return self._fairness.served(_owner(sequence))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


def _owner(sequence: Sequence) -> str:
    return sequence.owner or sequence.conversation
