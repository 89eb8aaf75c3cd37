"""Stock of a small warehouse. Prices are whole cents."""


class Inventory:
    """Counts and prices by article."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.prices: dict[str, int] = {}

    def add(self, article: str, count: int, price: int) -> int:
        """Add pieces and set the price; returns the new count. A count below 1 is a ValueError."""
        if count < 1:
            raise ValueError("count must be positive")
        self.counts[article] = self.counts.get(article, 0) + count
        self.prices[article] = price
        return self.counts[article]

    def remove(self, article: str, count: int) -> int:
        """Take pieces out; returns what is left. More than there is, is a ValueError."""
        available = self.counts.get(article, 0)
        if count > available:
            raise ValueError("not enough pieces")
        self.counts[article] = available - count
        return self.counts[article]

    def value(self) -> int:
        """Worth of everything in stock, in cents."""
        return sum(count * self.prices[article] for article, count in self.counts.items())

    def low_stock(self, threshold: int = 5) -> list[str]:
        """Articles with fewer pieces than `threshold` (five if not given), by name."""
        return sorted(article for article, count in self.counts.items() if count < threshold)

    def cheapest(self) -> str | None:
        """Article with the lowest price among those in stock, first by name if equal; None if nothing is in stock."""
        present = [article for article, count in self.counts.items() if count > 0]
        if not present:
            return None
        return min(present, key=lambda article: (self.prices[article], article))


def reorder(counts: dict[str, int], target: int, pack: int) -> dict[str, int]:
    """Packs to order per article to reach at least `target` pieces; articles that need none are left out."""
    packs: dict[str, int] = {}
    for article, count in sorted(counts.items()):
        missing = target - count
        if missing > 0:
            packs[article] = (missing + pack - 1) // pack
    return packs
