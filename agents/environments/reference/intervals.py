"""Closed integer intervals, written as [start, end] with start <= end."""


def merge(intervals: list[list[int]]) -> list[list[int]]:
    """Union as sorted intervals; intervals that touch (3 and 3) or overlap become one."""
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def total_length(intervals: list[list[int]]) -> int:
    """Length of the union, where [2, 5] has length 3."""
    return sum(end - start for start, end in merge(intervals))


def overlaps(first: list[int], second: list[int]) -> bool:
    """Whether two intervals share at least one point."""
    return first[0] <= second[1] and second[0] <= first[1]


def gaps(intervals: list[list[int]], low: int, high: int) -> list[list[int]]:
    """Parts of [low, high] that no interval covers, in order. Empty parts are left out."""
    found: list[list[int]] = []
    position = low
    for start, end in merge(intervals):
        if start > position:
            found.append([position, min(start, high)])
        position = max(position, end)
        if position >= high:
            break
    if position < high:
        found.append([position, high])
    return found


def clip(intervals: list[list[int]], low: int, high: int) -> list[list[int]]:
    """Each interval cut to [low, high]; those entirely outside are dropped."""
    cut: list[list[int]] = []
    for start, end in intervals:
        if end < low or start > high:
            continue
        cut.append([max(start, low), min(end, high)])
    return cut
