"""Times of one day as minutes since midnight, and what fits between appointments."""


def to_minutes(clock: str) -> int:
    """Minutes of "HH:MM". Hours above 23 and minutes above 59 are a ValueError."""
    hours, minutes = (int(part) for part in clock.split(":"))
    if not (0 <= hours < 24 and 0 <= minutes < 60):
        raise ValueError(f"no time of day: {clock}")
    return hours * 60 + minutes


def to_clock(minutes: int) -> str:
    """ "HH:MM" of minutes since midnight; past midnight it starts again."""
    hours, rest = divmod(minutes % 1440, 60)
    return f"{hours:02d}:{rest:02d}"


def free_slots(busy: list[list[int]], start: int, end: int, length: int) -> list[list[int]]:
    """Free stretches between `start` and `end` of at least `length` minutes, as [from, to]."""
    slots: list[list[int]] = []
    cursor = start
    for begin, finish in sorted(busy):
        if begin - cursor >= length:
            slots.append([cursor, begin])
        cursor = max(cursor, finish)
    if end - cursor >= length:
        slots.append([cursor, end])
    return slots


def conflicts(meetings: list[list[int]]) -> int:
    """Number of pairs that overlap; one that starts when another ends does not."""
    pairs = 0
    for i, first in enumerate(meetings):
        for second in meetings[i + 1 :]:
            if first[0] < second[1] and second[0] < first[1]:
                pairs += 1
    return pairs


def next_run(now: int, every: int, offset: int = 0) -> int:
    """First minute after `now` that is `offset` plus a multiple of `every`."""
    return now + every - (now - offset) % every


def rooms_needed(meetings: list[list[int]]) -> int:
    """Smallest number of rooms; a room is free again the minute a meeting ends."""
    changes = sorted([(end, -1) for _, end in meetings] + [(begin, 1) for begin, _ in meetings])
    used = most = 0
    for _, change in changes:
        used += change
        most = max(most, used)
    return most
