"""Which tokens the next step computes, and which requests give way. Called by `worker` between steps; no torch.

A worker's loop is schedule -> run -> advance. Requests join and leave between steps. Replies go first, one token each;
pieces of prompts fill the rest of the step. Who goes first and who gives way says `line`, where tokens live `memory`.

For lack of a place in the batch a sequence is parked: it waits and keeps its blocks. For lack of blocks it drops them,
and later computes again what cannot be found by then. The first in line is never stopped, so everything ends.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

from agents.engine.fairness import REPLY_COST
from agents.engine.line import Line
from agents.engine.memory import Copies, Memory
from agents.engine.sequence import BLOCK, Sequence
from schemas.errors import ConfigError, ContextFull, EngineError

STEP_TOKENS = 256
"""Tokens per step: enough rows for the linear layers to run at full speed, few enough to keep replies moving."""


@dataclass(frozen=True)
class Slice:
    """Tokens [start, start + count) of a sequence."""

    sequence: Sequence
    start: int
    count: int


@dataclass(frozen=True)
class Step:
    """What to run. `copies`, `window_copies`: (source, target) blocks, copied in this order before all writing."""

    slices: list[Slice]
    copies: Copies
    window_copies: Copies


@dataclass(frozen=True)
class SchedulerMetrics:
    """Counts since the start, then the present state. Tokens unless said otherwise.

    `queried`: of prompts looked up, `cached` of them found; `prefilled`: computed of prompts; `replayed`: run again for
    sliding windows only. `turn_hits`: requests that went on where their conversation's last turn ended, `turn_misses`
    those that brought ids of earlier calls and did not. `preempted`: times that a sequence dropped its blocks, `parked`
    that one kept them but left the batch. `evicted`: findable blocks given to others.
    """

    requests: int = 0
    queried: int = 0
    cached: int = 0
    prefilled: int = 0
    replayed: int = 0
    turn_hits: int = 0
    turn_misses: int = 0
    preempted: int = 0
    parked: int = 0
    evicted: int = 0
    waiting: int = 0
    running: int = 0
    paused: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    window_used: int = 0
    window_total: int = 0


class Scheduler:
    """Waiting, running and paused sequences. `running` may be read, not changed."""

    def __init__(
        self,
        max_batch: int,
        blocks: int,
        *,
        window: int | None = None,
        window_blocks: int = 0,
        step_tokens: int = STEP_TOKENS,
        replay_tokens: int | None = None,
        turn_ttl_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`window`: tokens that sliding-window layers see; None: there are none. `replay_tokens`: that many by default.

        ConfigError when a step cannot hold a token of every reply, or the window blocks not one sequence.
        """
        # A piece of c tokens and the window before it touch at most (window + c - 3) // 16 + 2 window blocks.
        self._piece = step_tokens if window is None else min(step_tokens, (window_blocks - 1) * BLOCK - window + 2)
        if not 1 <= max_batch <= step_tokens or blocks < 1 or self._piece < 1 or (window is not None and window < 1):
            raise ConfigError(
                f"no schedule for {max_batch} sequences in steps of {step_tokens} tokens, {blocks} blocks and, for a "
                f"window of {window}, {window_blocks} blocks"
            )
        replay = replay_tokens if replay_tokens is not None else (window or 0)
        self._memory = Memory(blocks, window, window_blocks, replay, turn_ttl_s, clock)
        self._line = Line()
        self._max_batch, self._step_tokens = max_batch, step_tokens
        self._plan: dict[Sequence, tuple[Slice, Copies, Copies]] = {}
        self._counts = SchedulerMetrics(blocks_total=blocks, window_total=window_blocks)

    @property
    def running(self) -> list[Sequence]:
        """The batch."""
        return self._line.running

    @property
    def busy(self) -> bool:
        """Whether `schedule` may have something to do. False while all that wait need blocks that paused ones hold."""
        return bool(self._line.running) or (self._line.changed and bool(self._line.waiting))

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence, prompt and reply, that fits at all."""
        return self._memory.pool.count * BLOCK

    @property
    def metrics(self) -> SchedulerMetrics:
        """Counts and state of this moment."""
        pool, window_pool, line = self._memory.pool, self._memory.window_pool, self._line
        return replace(
            self._counts,
            evicted=pool.evicted,
            waiting=len(line.waiting),
            running=len(line.running),
            paused=len(line) - len(line.waiting) - len(line.running),
            blocks_used=pool.count - pool.available,
            window_used=window_pool.count - window_pool.available,
        )

    def add(self, sequence: Sequence) -> None:
        """Queue a request. ContextFull when it could not fit even alone."""
        if not self._can_fit(sequence):
            raise ContextFull(f"{sequence.prompt} + {sequence.limit} tokens; the engine holds {self.capacity_tokens}")
        self._line.join(sequence)
        self._count(requests=1)

    def schedule(self) -> Step:
        """The next step. May be empty: nothing is left to do, or what is left has to wait (see `busy`)."""
        self._memory.turns.expire()
        while self._line.changed and self._line.waiting:
            self._line.changed = self._start(self._line.first())
        self._line.changed = False
        self._plan = {}
        room = self._step_tokens
        replies = [sequence for sequence in self.running if sequence.replying]
        for after, sequence in zip(range(len(replies) - 1, -1, -1), replies, strict=True):
            # One token is kept for every reply that follows; grammars may force many at once.
            room -= self._place(sequence, min(sequence.pending, self._piece, room - after))
        making: set[bytes] = set()
        for sequence in self._line.prompts():
            if room and sequence.state == "running":
                room -= self._place(sequence, self._prompt_piece(sequence, room, making))
        slices, copies, window_copies = zip(*self._plan.values(), strict=True) if self._plan else ((), (), ())
        return Step(list(slices), list(chain(*copies)), list(chain(*window_copies)))

    def advance(self, step: Step) -> None:
        """A step has run: its tokens are computed. To be called before anything else happens to its sequences."""
        replayed = prefilled = 0
        for part in step.slices:
            sequence = part.sequence
            if sequence.state != "running":
                continue
            again = max(0, min(sequence.kept - part.start, part.count))
            replayed += again
            if part.start < sequence.prompt:
                prefilled += part.count - again
            else:
                self._line.charge(sequence, REPLY_COST * part.count)
            self._memory.advance(sequence, part.count)
        if replayed or prefilled:
            self._count(replayed=replayed, prefilled=prefilled)

    def finish(self, sequence: Sequence) -> None:
        """A reply is whole. What cannot be found by its ids alone is held for the conversation's next call."""
        self._line.leave(sequence)
        self._memory.keep(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Forget a sequence, whatever its state; its blocks are free at once. One that is done stays as it is."""
        if sequence in self._line:
            self._line.leave(sequence)
            self._memory.leave(sequence)

    def pause(self, sequence: Sequence) -> None:
        """Take a running or waiting sequence out of the line. It holds its blocks until `resume` or `cancel`."""
        self._line.pause(sequence)

    def resume(self, sequence: Sequence) -> None:
        """Put a paused sequence back in line. It starts before new ones of its priority, without prefill."""
        self._line.resume(sequence)

    def adopt(self, sequence: Sequence) -> bool:
        """Take in a paused sequence from elsewhere: `computed` set, no blocks, `mixed` if keys are of other weights.

        It gets blocks for `ids[:computed]` (window blocks: for what the next token sees), to be filled before `resume`.
        False: there is no room without stopping others, or none at all for its whole reply.
        """
        if sequence.state != "paused" or sequence in self._line:
            raise EngineError("only a paused sequence from elsewhere can be adopted")
        adopted = self._can_fit(sequence) and self._memory.adopt(sequence)
        if adopted:
            self._line.adopt(sequence)
        return adopted

    def release(self, conversation: str) -> None:
        """A conversation is over: its turn is freed, and blocks that only it used are reused first."""
        self._memory.release(conversation)

    def flush(self) -> None:
        """Weights have changed: nothing cached is found again, and sequences that hold blocks are mixed."""
        self._memory.flush()

    def audit(self) -> None:
        """EngineError when a block is lost, or counted wrongly. For tests and soak runs."""
        self._memory.audit()

    def _can_fit(self, sequence: Sequence) -> bool:
        return sequence.prompt + sequence.limit <= self.capacity_tokens

    def _start(self, head: Sequence) -> bool:
        """Start the first in line, if there is a place and room for it."""
        if self._full() and self._line.last(self.running).priority >= head.priority:
            return False
        fresh = not head.table
        continued = fresh and self._memory.find(head)
        if not self._make_room(head):
            if fresh:
                self._empty(head)
            return False
        if self._full():
            self._line.stop(self._line.last(self.running))
            self._count(parked=1)
        if self._line.start(head):
            # The turn's blocks are the sequence's now.
            self._memory.turns.drop(head.conversation)
            self._count(queried=head.prompt, turn_hits=continued, turn_misses=not continued and head.context > 0)
            self._line.charge(head, head.prompt)
            self._hit(head, head.kept)
        return True

    def _full(self) -> bool:
        return len(self.running) >= self._max_batch

    def _make_room(self, head: Sequence) -> bool:
        """Take blocks from what is behind `head` until it fits beside those that run."""
        while not self._fits(head):
            behind = [s for s in self._line.waiting if s.table and s is not head]
            behind += [s for s in self.running if s.priority < head.priority]
            if not behind:
                return False
            self._drop(self._line.last(behind))
        return True

    def _fits(self, head: Sequence) -> bool:
        """Whether `head` and all that run can compute what they have, and those that run a block more.

        One that has had to drop its blocks comes back only when its whole reply fits: no stopping one another in turn.
        """
        whole = head.prompt + head.limit if self._line.dropped(head) else len(head.ids)
        missing = [self._memory.missing(head, whole, self._piece)]
        missing += [self._memory.missing(s, len(s.ids) + BLOCK, self._piece) for s in self.running]
        room, window_room = self._memory.room()
        return sum(m[0] for m in missing) <= room and sum(m[1] for m in missing) <= window_room

    def _prompt_piece(self, sequence: Sequence, room: int, making: set[bytes]) -> int:
        """How many tokens of a prompt to compute; 0 when another sequence makes the next block in this step."""
        found = self._memory.follow(sequence)
        if found and not self._line.dropped(sequence):
            self._hit(sequence, found)
        end = min(len(sequence.ids), sequence.computed + min(room, self._piece))
        whole = end // BLOCK * BLOCK
        if sequence.computed < whole and end < len(sequence.ids):
            end = whole
        return self._memory.reach(sequence, end, making) - sequence.computed

    def _hit(self, sequence: Sequence, tokens: int) -> None:
        sequence.cached += tokens
        self._count(cached=tokens)
        self._line.charge(sequence, -tokens)

    def _place(self, sequence: Sequence, count: int) -> int:
        """Put tokens into the step, with blocks for them. Returns how many: `count`, or 0 when it has to give way."""
        if count < 1 or sequence.state != "running":
            return 0
        copies: Copies = []
        window_copies: Copies = []
        while not self._memory.extend(sequence, sequence.computed + count, copies, window_copies):
            last = self._line.last([sequence, *(s for s in [*self.running, *self._line.waiting] if s.table)])
            self._drop(last)
            if last is sequence:
                return 0
        self._plan[sequence] = Slice(sequence, sequence.computed, count), copies, window_copies
        return count

    def _drop(self, sequence: Sequence) -> None:
        """Back into the line without blocks, also out of the step that is being planned."""
        self._plan.pop(sequence, None)
        self._empty(sequence)
        sequence.mixed = False
        if sequence.state == "running":
            self._line.stop(sequence)
        self._line.mark_dropped(sequence)
        self._count(preempted=1)

    def _empty(self, sequence: Sequence) -> None:
        self._memory.free(sequence)
        sequence.computed = sequence.kept = 0

    def _count(self, **more: int) -> None:
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + n for name, n in more.items()})
