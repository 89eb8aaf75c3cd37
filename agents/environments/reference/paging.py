"""Long lists in pages and batches. Page numbers start at 1."""


def page_count(items: int, size: int) -> int:
    """Pages needed for `items`; an empty list has one (empty) page."""
    return max(1, (items + size - 1) // size)


def page(items: list[int], number: int, size: int = 10) -> list[int]:
    """Items of one page, ten if no size is given; a page that does not exist is empty."""
    if number < 1:
        return []
    return items[(number - 1) * size : number * size]


def window(current: int, last: int, width: int = 2) -> list[int]:
    """Page numbers to show: `width` on both sides of the current page, as far as they exist."""
    return list(range(max(1, current - width), min(last, current + width) + 1))


def batches(items: list[int], size: int) -> list[list[int]]:
    """Consecutive parts of `size` items; the last one may be shorter."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def chunk_by_sum(items: list[int], limit: int) -> list[list[int]]:
    """Consecutive parts whose sum stays within `limit`; a larger item stands alone."""
    parts: list[list[int]] = []
    total = 0
    for item in items:
        if parts and total + item <= limit:
            parts[-1].append(item)
            total += item
        else:
            parts.append([item])
            total = item
    return parts


def interleave(lists: list[list[int]]) -> list[int]:
    """First items of all lists, then second ones, and so on; shorter lists just end."""
    longest = max((len(part) for part in lists), default=0)
    return [part[i] for i in range(longest) for part in lists if i < len(part)]


def positions(items: list[int], found: dict[str, list[int]] | None = None) -> dict[str, list[int]]:
    """Indices at which each item stands, by its text; added to a copy of `found` if that is given."""
    index = {} if found is None else {key: list(value) for key, value in found.items()}
    for place, item in enumerate(items):
        index.setdefault(str(item), []).append(place)
    return index
