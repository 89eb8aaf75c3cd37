"""Who was served how much: virtual token counters. Called by `scheduler`; no torch.

Sheng et al. 2024, "Fairness in Serving Large Language Models", algorithm 2 (VTC): the owner with the least service goes
first, and one that comes back is lifted to the least of those who are here, so that idle time gives no credit.
"""

REPLY_COST = 2
"""What a reply's token costs when a prompt's token costs 1 (their weights)."""


class Fairness:
    """Counters of the owners that have something waiting or running."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._requests: dict[str, int] = {}

    def enter(self, owner: str) -> None:
        """One more request of an owner waits or runs."""
        if owner not in self._requests:
            self._served[owner] = min(self._served.values(), default=0)
        self._requests[owner] = self._requests.get(owner, 0) + 1

    def leave(self, owner: str) -> None:
        """One less; with the last one the counter goes."""
        self._requests[owner] -= 1
        if not self._requests[owner]:
            del self._requests[owner], self._served[owner]

    def charge(self, owner: str, cost: int) -> None:
        """Count service; a negative cost is given back."""
        self._served[owner] += cost

    def served(self, owner: str) -> int:
        """The counter of an owner that has something waiting or running."""
        return self._served[owner]

    def __len__(self) -> int:
        return len(self._served)
