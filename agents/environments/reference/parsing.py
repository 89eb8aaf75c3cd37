"""Parsers for small notations."""

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_duration(text: str) -> int:
    """Seconds of something like "1h30m" or "45s". A number without a unit, or an empty text, is a ValueError."""
    seconds = 0
    digits = ""
    for letter in text:
        if letter.isdigit():
            digits += letter
        elif letter in UNITS and digits:
            seconds += int(digits) * UNITS[letter]
            digits = ""
        else:
            raise ValueError(f"unexpected {letter!r}")
    if digits or not text:
        raise ValueError("unit missing")
    return seconds


def parse_pairs(line: str, separator: str = ";") -> dict[str, str]:
    """Keys and values of "a=1;b=2". Only the first = of a part counts; parts without one are ignored."""
    pairs: dict[str, str] = {}
    for part in line.split(separator):
        key, sign, value = part.partition("=")
        if sign:
            pairs[key.strip()] = value.strip()
    return pairs


def parse_ranges(text: str) -> list[int]:
    """Numbers of "1-3,7": both ends of a range belong to it; sorted, each once."""
    numbers: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if dash:
            numbers.update(range(int(low), int(high) + 1))
        elif low:
            numbers.add(int(low))
    return sorted(numbers)


def split_fields(line: str, quote: str = '"') -> list[str]:
    """Fields between commas; commas inside quotes do not separate, and the quotes are removed."""
    fields = [""]
    quoted = False
    for letter in line:
        if letter == quote:
            quoted = not quoted
        elif letter == "," and not quoted:
            fields.append("")
        else:
            fields[-1] += letter
    return fields


def balanced(text: str) -> bool:
    """Whether round and square brackets are closed in the right order."""
    stack: list[str] = []
    for letter in text:
        if letter in "([":
            stack.append(letter)
        elif letter in ")]" and (not stack or stack.pop() + letter not in ("()", "[]")):
            return False
    return not stack
