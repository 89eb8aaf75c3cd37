"""What a pool counts. Kept by pool.py, read by node agents, benches and reports."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agents.sandbox.base import Priority
from agents.sandbox.lease import Held, How
from schemas.errors import SandboxDied

WINDOW_S = 60.0
"""Over which a rate is taken."""


@dataclass(frozen=True)
class Metrics:
    """One look at a pool. Seconds are clock values, summed over leases."""

    live: Mapping[Priority, int]
    """Leased now, those being closed included."""
    queued: Mapping[Priority, int]
    peak: int
    """Most that were leased at once."""
    making: int
    """Being made now, for leases and spares."""
    spares: int
    created: int
    """Sandboxes made so far, spares included."""
    created_per_s: float
    """Mean of the last 60 s, or since the first one where that is less."""
    refused: Mapping[str, int]
    """Leases refused, by cause."""
    reclaimed: int
    """Leases taken back from holders that let go of them or did not use them."""
    deaths: Mapping[str, int]
    """Leased sandboxes that were gone before their holder closed them: crashed, expired, lost, died."""
    waited_s: Mapping[Priority, float]
    """In the queue, those that still wait included."""
    held_s: Mapping[Priority, float]
    """Leased, those that still are included."""


@dataclass
class Tally:
    """The counts behind Metrics that only grow. Times are those of the pool's event loop."""

    created: int = 0
    leased: int = 0
    """Now, those being closed included."""
    peak: int = 0
    recent: deque[float] = field(default_factory=deque)
    """When sandboxes were made, within the window."""
    first: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    reclaimed: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    waited_s: dict[Priority, float] = field(default_factory=lambda: {"latency": 0.0, "background": 0.0})
    held_s: dict[Priority, float] = field(default_factory=lambda: {"latency": 0.0, "background": 0.0})

    def creation(self, now: float) -> None:
        """A sandbox was made."""
        self.first = self.first if self.created else now
        self.created += 1
        self.recent.append(now)
        self._forget(now)

    def lease(self) -> None:
        """A sandbox has a holder."""
        self.leased += 1
        self.peak = max(self.peak, self.leased)

    def give_back(self, priority: Priority, seconds: float) -> None:
        """It is closed, and was held for so long."""
        self.leased -= 1
        self.held_s[priority] += seconds

    def look(
        self, now: float, waiting: Mapping[Priority, Collection[float]], live: Iterable[Held], making: int, spares: int
    ) -> Metrics:
        """Everything up to now. `waiting`: since when, of all in a queue; `live`: leased ones and others."""
        leased = [(held.priority, held.since) for held in live if held.since is not None]
        held_s = dict(self.held_s)
        for priority, since in leased:
            held_s[priority] += now - since
        return Metrics(
            live={priority: sum(priority == other for other, _ in leased) for priority in waiting},
            queued={priority: len(times) for priority, times in waiting.items()},
            peak=self.peak,
            making=making,
            spares=spares,
            created=self.created,
            created_per_s=self._created_per_s(now),
            refused=dict(self.refused),
            reclaimed=self.reclaimed,
            deaths=dict(self.deaths),
            waited_s={
                priority: self.waited_s[priority] + sum(now - t for t in times) for priority, times in waiting.items()
            },
            held_s=held_s,
        )

    def _created_per_s(self, now: float) -> float:
        """Mean over the window. The first second counts as a whole one."""
        self._forget(now)
        return len(self.recent) / min(WINDOW_S, max(1.0, now - self.first))

    def ended(self, how: How, error: SandboxDied) -> None:
        """A sandbox is over, and why."""
        if how == "died":
            self.deaths[type(error).__name__.removeprefix("Sandbox").lower()] += 1
        elif how == "reclaimed":
            self.reclaimed += 1

    def _forget(self, now: float) -> None:
        while self.recent and self.recent[0] <= now - WINDOW_S:
            self.recent.popleft()
