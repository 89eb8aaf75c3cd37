"""Room on this host: now by its signals, and ever by what was seen of them. Kept by pool.py; admission.py decides."""

import asyncio
from collections.abc import Callable

from agents.sandbox.admission import Cause, PoolSettings, never, shortage
from agents.sandbox.base import Limits, Priority
from agents.sandbox.signals import Reading, Signals

SETTLED_S = 30.0
"""After so long the most that was ever free counts as what this host can give: by then a former user has left."""


class Room:
    """Reads the signals when it is made, which raises what they raise, and then with every `shortage`."""

    def __init__(self, settings: PoolSettings, signals: Callable[[], Reading]) -> None:
        self._settings = settings
        self._signals = signals
        self._first = self._signals()
        self._most_mb, self._most_pids = self._first.memory_mb, self._first.pids
        """Ever seen free."""
        self._since: float | None = None
        """When somebody asked first."""

    def shortage(self, limits: Limits, priority: Priority, making: int) -> Cause | None:
        """What is short for one more. That the signals cannot be read is a shortage too."""
        self._since = asyncio.get_running_loop().time() if self._since is None else self._since
        try:
            reading = self._signals()
        except (OSError, ValueError) as error:
            return "signals", f"the signals of this host cannot be read: {error}"
        self._most_mb, self._most_pids = max(self._most_mb, reading.memory_mb), max(self._most_pids, reading.pids)
        return shortage(reading, self._settings, limits, priority, making)

    def impossible(self, limits: Limits) -> Cause | None:
        """Why not even a host with nothing on it could give these limits."""
        return never(self._settings, limits, self._first.memory_total_mb, self._first.pids_total)

    def hopeless(self, limits: Limits) -> Cause | None:
        """Why what waits behind these limits would wait for ever: they are above all that was ever free."""
        if self._since is None or asyncio.get_running_loop().time() < self._since + SETTLED_S:
            return None
        return never(self._settings, limits, self._most_mb, self._most_pids)

    def close(self) -> None:
        """Close the signals' files."""
        if isinstance(self._signals, Signals):
            self._signals.close()
