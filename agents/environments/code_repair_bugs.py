"""Bugs that `code_repair` seeds: what in a reference source is replaced by what. Data only."""

# ruff: noqa: E501 - a table: one bug a line.
from dataclasses import dataclass
from typing import Literal

BugKind = Literal[
    "off_by_one", "wrong_operator", "swapped_arguments", "missing_case", "wrong_default", "mutable_default",
    "wrong_variable",
]  # fmt: skip


@dataclass(frozen=True)
class Bug:
    """A bug in `function` (or class) of a module. `good` stands once in its source; `bad` replaces it."""

    module: str
    function: str
    kind: BugKind
    good: str
    bad: str


BUGS = (
    Bug("intervals", "merge", "off_by_one", "start <= merged[-1][1]:", "start <= merged[-1][1] - 1:"),
    Bug("intervals", "merge", "missing_case", "merged[-1][1] = max(merged[-1][1], end)", "merged[-1][1] = end"),
    Bug("intervals", "overlaps", "wrong_operator", "first[0] <= second[1] and", "first[0] < second[1] and"),
    Bug("intervals", "gaps", "swapped_arguments", "found.append([position, min(start, high)])", "found.append([position, max(start, high)])"),
    Bug("intervals", "gaps", "missing_case", "position = max(position, end)", "position = end"),
    Bug("intervals", "clip", "wrong_variable", "cut.append([max(start, low), min(end, high)])", "cut.append([max(start, low), min(start, high)])"),
    Bug("intervals", "clip", "wrong_operator", "if end < low or start > high:", "if end < low and start > high:"),
    Bug("textkit", "wrap", "off_by_one", "len(current) + 1 + len(word) > width", "len(current) + len(word) > width"),
    Bug("textkit", "wrap", "missing_case", "    if current:\n        lines.append(current)\n    return lines", "    return lines"),
    Bug("textkit", "slugify", "missing_case", "else \" \" for letter in title.lower()]", "else \" \" for letter in title]"),
    Bug("textkit", "truncate", "wrong_operator", "if len(text) <= limit:", "if len(text) < limit:"),
    Bug("textkit", "truncate", "off_by_one", "text[: limit - len(mark)] + mark", "text[: limit - len(mark) + 1] + mark"),
    Bug("textkit", "count_words", "off_by_one", "counts.get(word, 0) + 1", "counts.get(word, 1) + 1"),
    Bug("textkit", "count_words", "missing_case", "{word.lower() for word in stop or []}", "set(stop or [])"),
    Bug("textkit", "initials", "missing_case", "name.replace(\"-\", \" \").split()", "name.split()"),
    Bug("textkit", "indent", "wrong_default", "depth: int = 4) -> list[str]:", "depth: int = 2) -> list[str]:"),
    Bug("inventory", "Inventory", "wrong_default", "low_stock(self, threshold: int = 5)", "low_stock(self, threshold: int = 6)"),
    Bug("inventory", "Inventory", "wrong_operator", "for article, count in self.counts.items() if count < threshold", "for article, count in self.counts.items() if count <= threshold"),
    Bug("inventory", "Inventory", "wrong_operator", "if count > available:", "if count >= available:"),
    Bug("inventory", "Inventory", "wrong_variable", "self.counts[article] = self.counts.get(article, 0) + count", "self.counts[article] = self.counts.get(article, 0) + price"),
    Bug("inventory", "Inventory", "swapped_arguments", "key=lambda article: (self.prices[article], article)", "key=lambda article: (article, self.prices[article])"),
    Bug("inventory", "Inventory", "missing_case", "for article, count in self.counts.items() if count > 0]", "for article, count in self.counts.items()]"),
    Bug("inventory", "reorder", "off_by_one", "(missing + pack - 1) // pack", "(missing + pack) // pack"),
    Bug("inventory", "reorder", "wrong_variable", "missing = target - count", "missing = target - pack"),
    Bug("schedule", "to_minutes", "off_by_one", "0 <= hours < 24 and 0 <= minutes < 60", "0 <= hours < 24 and 0 <= minutes < 61"),
    Bug("schedule", "to_clock", "missing_case", "divmod(minutes % 1440, 60)", "divmod(minutes, 60)"),
    Bug("schedule", "free_slots", "wrong_operator", "if begin - cursor >= length:", "if begin - cursor > length:"),
    Bug("schedule", "free_slots", "missing_case", "cursor = max(cursor, finish)", "cursor = finish"),
    Bug("schedule", "free_slots", "wrong_variable", "slots.append([cursor, end])", "slots.append([start, end])"),
    Bug("schedule", "conflicts", "wrong_operator", "first[0] < second[1] and second[0] < first[1]", "first[0] <= second[1] and second[0] <= first[1]"),
    Bug("schedule", "conflicts", "off_by_one", "for second in meetings[i + 1 :]:", "for second in meetings[i:]:"),
    Bug("schedule", "next_run", "swapped_arguments", "every - (now - offset) % every", "every - (offset - now) % every"),
    Bug("schedule", "rooms_needed", "swapped_arguments", "[(end, -1) for _, end in meetings] + [(begin, 1) for begin, _ in meetings]", "[(end, 1) for _, end in meetings] + [(begin, -1) for begin, _ in meetings]"),
    Bug("ledger", "Ledger", "wrong_operator", "if amount <= 0:", "if amount < 0:"),
    Bug("ledger", "Ledger", "wrong_variable", "self.balances[target] = self.balances.get(target, 0) + amount", "self.balances[target] = self.balances.get(source, 0) + amount"),
    Bug("ledger", "Ledger", "wrong_operator", "self.balances.get(source, 0) < amount", "self.balances.get(source, 0) <= amount"),
    Bug("ledger", "Ledger", "missing_case", "return mine[::-1][:last]", "return mine[:last]"),
    Bug("ledger", "Ledger", "wrong_operator", "(-self.balances[account], account)", "(self.balances[account], account)"),
    Bug("ledger", "split_bill", "off_by_one", "share + 1 if i < rest else share", "share + 1 if i <= rest else share"),
    Bug("ledger", "split_bill", "swapped_arguments", "divmod(total, people)", "divmod(people, total)"),
    Bug("ledger", "add_fee", "wrong_default", "percent: int, minimum: int = 100)", "percent: int, minimum: int = 10)"),
    Bug("ledger", "add_fee", "swapped_arguments", "max(amount * percent // 100, minimum)", "min(amount * percent // 100, minimum)"),
    Bug("ledger", "collect_tags", "missing_case", "word.startswith(\"#\") and word not in found", "word.startswith(\"#\")"),
    Bug("parsing", "parse_duration", "missing_case", "    if digits or not text:\n", "    if not text:\n"),
    Bug("parsing", "parse_duration", "wrong_variable", "seconds += int(digits) * UNITS[letter]", "seconds = int(digits) * UNITS[letter]"),
    Bug("parsing", "parse_duration", "wrong_default", "\"h\": 3600, \"m\": 60,", "\"h\": 360, \"m\": 60,"),
    Bug("parsing", "parse_pairs", "missing_case", "pairs[key.strip()] = value.strip()", "pairs[key] = value"),
    Bug("parsing", "parse_pairs", "wrong_operator", "part.partition(\"=\")", "part.rpartition(\"=\")"),
    Bug("parsing", "parse_ranges", "off_by_one", "range(int(low), int(high) + 1)", "range(int(low), int(high))"),
    Bug("parsing", "split_fields", "wrong_operator", "letter == \",\" and not quoted", "letter == \",\""),
    Bug("parsing", "balanced", "missing_case", "return not stack", "return True"),
    Bug("parsing", "balanced", "swapped_arguments", "stack.pop() + letter not in", "letter + stack.pop() not in"),
    Bug("grid", "neighbours", "wrong_operator", "0 <= y < len(grid) and 0 <= x", "0 < y < len(grid) and 0 <= x"),
    Bug("grid", "neighbours", "swapped_arguments", "y, x = row + down, column + right", "y, x = row + right, column + down"),
    Bug("grid", "rotate", "missing_case", "zip(*grid[::-1], strict=True)", "zip(*grid, strict=True)"),
    Bug("grid", "column_sums", "off_by_one", "for x in range(len(grid[0]))", "for x in range(len(grid[0]) - 1)"),
    Bug("grid", "regions", "wrong_default", "value: int = 1) -> int:", "value: int = 0) -> int:"),
    Bug("grid", "regions", "wrong_variable", "(y - 1, x), (y + 1, x), (y, x - 1)", "(y - 1, x), (y - 1, x), (y, x - 1)"),
    Bug("grid", "border", "wrong_variable", "x in (0, last_column)", "x in (0, last_row)"),
    Bug("grid", "diagonal", "wrong_operator", "row[y + offset] for y, row", "row[y - offset] for y, row"),
    Bug("paging", "page_count", "off_by_one", "(items + size - 1) // size", "items // size + 1"),
    Bug("paging", "page_count", "missing_case", "return max(1, (items", "return max(0, (items"),
    Bug("paging", "page", "wrong_default", "number: int, size: int = 10)", "number: int, size: int = 9)"),
    Bug("paging", "page", "off_by_one", "items[(number - 1) * size : number * size]", "items[(number - 1) * size : number * size - 1]"),
    Bug("paging", "window", "swapped_arguments", "range(max(1, current - width), min(last, current + width) + 1)", "range(min(1, current - width), max(last, current + width) + 1)"),
    Bug("paging", "window", "off_by_one", "min(last, current + width) + 1", "min(last, current + width)"),
    Bug("paging", "chunk_by_sum", "wrong_variable", "            total = item\n", "            total = 0\n"),
    Bug("paging", "chunk_by_sum", "wrong_operator", "total + item <= limit", "total + item < limit"),
    Bug("paging", "interleave", "swapped_arguments", "for i in range(longest) for part in lists if i < len(part)", "for part in lists for i in range(longest) if i < len(part)"),
    Bug("paging", "batches", "wrong_variable", "for i in range(0, len(items), size)", "for i in range(0, len(items) - size, size)"),
    Bug("versions", "parse", "missing_case", "version.removeprefix(\"v\").split(\".\")", "version.split(\".\")"),
    Bug("versions", "parse", "off_by_one", "if len(numbers) > 3 or", "if len(numbers) > 4 or"),
    Bug("versions", "compare", "swapped_arguments", "(left > right) - (left < right)", "(left < right) - (left > right)"),
    Bug("versions", "bump", "missing_case", "{major}.{minor + 1}.0", "{major}.{minor + 1}.{patch}"),
    Bug("versions", "bump", "wrong_default", "part: str = \"patch\")", "part: str = \"minor\")"),
    Bug("versions", "latest", "wrong_variable", "max(candidates, key=parse, default=None)", "max(candidates, default=None)"),
    Bug("versions", "compatible", "wrong_operator", "compare(wanted, offered) <= 0", "compare(wanted, offered) < 0"),
    Bug("versions", "outdated", "swapped_arguments", "compare(version, available[name]) < 0", "compare(available[name], version) < 0"),
    Bug("workqueue", "WorkQueue", "wrong_operator", "if len(self.jobs) >= self.capacity:", "if len(self.jobs) > self.capacity:"),
    Bug("workqueue", "WorkQueue", "swapped_arguments", "self.jobs.append((priority, self.arrivals, job))", "self.jobs.append((self.arrivals, priority, job))"),
    Bug("workqueue", "WorkQueue", "wrong_default", "job: str, priority: int = 5)", "job: str, priority: int = 0)"),
    Bug("workqueue", "WorkQueue", "missing_case", "        self.jobs.remove(chosen)\n", ""),
    Bug("workqueue", "WorkQueue", "wrong_variable", "ordered if limit is None else ordered[:limit]", "ordered if limit is None else ordered[limit:]"),
    Bug("workqueue", "share", "swapped_arguments", "[jobs[i::workers] for i in range(workers)]", "[jobs[workers::i + 1] for i in range(workers)]"),
    Bug("workqueue", "retry_delays", "swapped_arguments", "min(first * 2**i, most)", "max(first * 2**i, most)"),
    Bug("workqueue", "retry_delays", "off_by_one", "for i in range(tries)", "for i in range(1, tries + 1)"),
    Bug("workqueue", "least_loaded", "swapped_arguments", "key=lambda name: (loads[name], name)", "key=lambda name: (name, loads[name])"),
    Bug("workqueue", "finish_order", "wrong_variable", "moment += seconds", "moment = start + seconds"),
    Bug(
        "ledger", "collect_tags", "mutable_default",
        "seen: list[str] | None = None) -> list[str]:\n"
        '    """Words that start with # in order of appearance, after those in `seen`, each once."""\n'
        "    found = [] if seen is None else list(seen)",
        "seen: list[str] = []) -> list[str]:\n"
        '    """Words that start with # in order of appearance, after those in `seen`, each once."""\n'
        "    found = seen",
    ),
    Bug(
        "paging", "positions", "mutable_default",
        "found: dict[str, list[int]] | None = None) -> dict[str, list[int]]:\n"
        '    """Indices at which each item stands, by its text; added to a copy of `found` if that is given."""\n'
        "    index = {} if found is None else {key: list(value) for key, value in found.items()}",
        "found: dict[str, list[int]] = {}) -> dict[str, list[int]]:\n"
        '    """Indices at which each item stands, by its text; added to a copy of `found` if that is given."""\n'
        "    index = found",
    ),
)  # fmt: skip
