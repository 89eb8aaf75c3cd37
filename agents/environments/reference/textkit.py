"""Small helpers for plain text."""


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters, broken at spaces; a longer word stands on a line of its own."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        if current and len(current) + 1 + len(word) > width:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}" if current else word
    if current:
        lines.append(current)
    return lines


def slugify(title: str) -> str:
    """Lower-case letters and digits, everything else between them as one hyphen; no hyphen at the ends."""
    cleaned = [letter if letter.isalnum() else " " for letter in title.lower()]
    return "-".join("".join(cleaned).split())


def truncate(text: str, limit: int, mark: str = "...") -> str:
    """The text itself if it has at most `limit` characters, else cut so that with `mark` it has exactly `limit`."""
    if len(text) <= limit:
        return text
    return text[: limit - len(mark)] + mark


def count_words(text: str, stop: list[str] | None = None) -> dict[str, int]:
    """How often each word occurs, case ignored, words of `stop` left out."""
    ignored = {word.lower() for word in stop or []}
    counts: dict[str, int] = {}
    for word in text.lower().split():
        if word not in ignored:
            counts[word] = counts.get(word, 0) + 1
    return counts


def initials(name: str) -> str:
    """Upper-case first letters of all parts of a name; hyphens separate parts too."""
    return "".join(part[0].upper() for part in name.replace("-", " ").split())


def indent(lines: list[str], depth: int = 4) -> list[str]:
    """Lines with `depth` spaces in front, four if not given; blank lines become empty."""
    return [" " * depth + line if line.strip() else "" for line in lines]
