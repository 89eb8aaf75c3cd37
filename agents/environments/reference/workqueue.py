"""A queue of jobs with priorities, and ways to share work."""


class WorkQueue:
    """Jobs leave by priority (small numbers first), and in order of arrival where it is equal."""

    def __init__(self, capacity: int = 100) -> None:
        self.capacity = capacity
        self.jobs: list[tuple[int, int, str]] = []
        self.arrivals = 0

    def push(self, job: str, priority: int = 5) -> int:
        """Add a job, of middling priority 5 if not given; returns how many wait. A full queue is an OverflowError."""
        if len(self.jobs) >= self.capacity:
            raise OverflowError("queue is full")
        self.arrivals += 1
        self.jobs.append((priority, self.arrivals, job))
        return len(self.jobs)

    def pop(self) -> str | None:
        """Take the next job, or None when nothing waits."""
        if not self.jobs:
            return None
        chosen = min(self.jobs)
        self.jobs.remove(chosen)
        return chosen[2]

    def waiting(self, limit: int | None = None) -> list[str]:
        """Jobs in the order in which they would leave, at most `limit` of them."""
        ordered = [job for _, _, job in sorted(self.jobs)]
        return ordered if limit is None else ordered[:limit]


def share(jobs: list[str], workers: int) -> list[list[str]]:
    """Jobs dealt out in turn, one list per worker."""
    return [jobs[i::workers] for i in range(workers)]


def retry_delays(tries: int, first: int = 2, most: int = 60) -> list[int]:
    """Seconds to wait after each failed try: doubled each time, never more than `most`."""
    return [min(first * 2**i, most) for i in range(tries)]


def least_loaded(loads: dict[str, int]) -> str | None:
    """Worker with the smallest load, first by name if equal; None without workers."""
    if not loads:
        return None
    return min(loads, key=lambda name: (loads[name], name))


def finish_order(durations: dict[str, int], start: int = 0) -> list[str]:
    """Each job with the time it ends when jobs run one after the other, shortest first, as "job@time"."""
    moment = start
    done: list[str] = []
    for job, seconds in sorted(durations.items(), key=lambda item: (item[1], item[0])):
        moment += seconds
        done.append(f"{job}@{moment}")
    return done
