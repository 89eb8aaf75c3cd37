"""Text of others on a terminal: nothing in it may move the cursor, recolour, or hide. Called by `show` and `sql`."""

import unicodedata

# Control, format (bidi overrides, zero width), surrogate, line and paragraph separator.
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def plain(text: str) -> str:
    """`text` with every control or invisible character but newline and tab written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _HIDDEN else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
