"""Accounts and bookings. Amounts are whole cents."""


class Ledger:
    """Balances by account, and the list of bookings."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}
        self.entries: list[list[object]] = []

    def deposit(self, account: str, amount: int) -> int:
        """Pay in; returns the balance. An amount below 1 is a ValueError."""
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balances[account] = self.balances.get(account, 0) + amount
        self.entries.append(["deposit", account, amount])
        return self.balances[account]

    def transfer(self, source: str, target: str, amount: int) -> list[int]:
        """Move money; returns both balances. ValueError when the source has less than `amount`."""
        if self.balances.get(source, 0) < amount:
            raise ValueError("not enough money")
        self.balances[source] -= amount
        self.balances[target] = self.balances.get(target, 0) + amount
        self.entries.append(["transfer", source, amount])
        return [self.balances[source], self.balances[target]]

    def history(self, account: str, last: int = 10) -> list[list[object]]:
        """The last bookings of an account, newest first."""
        mine = [entry for entry in self.entries if entry[1] == account]
        return mine[::-1][:last]

    def richest(self) -> str | None:
        """Account with the highest balance, first by name if equal; None when there are no accounts."""
        if not self.balances:
            return None
        return min(self.balances, key=lambda account: (-self.balances[account], account))


def split_bill(total: int, people: int) -> list[int]:
    """Shares that add up to `total` and differ by at most one cent; larger shares come first."""
    share, rest = divmod(total, people)
    return [share + 1 if i < rest else share for i in range(people)]


def add_fee(amount: int, percent: int, minimum: int = 100) -> int:
    """Amount plus a fee of `percent`, rounded down, but at least `minimum` (a hundred cents if not given)."""
    return amount + max(amount * percent // 100, minimum)


def collect_tags(entries: list[str], seen: list[str] | None = None) -> list[str]:
    """Words that start with # in order of appearance, after those in `seen`, each once."""
    found = [] if seen is None else list(seen)
    for entry in entries:
        for word in entry.split():
            if word.startswith("#") and word not in found:
                found.append(word)
    return found
