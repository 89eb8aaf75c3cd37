"""Figures of the server in Prometheus' text format (0.0.4). `Stats` is filled by `app`; `text` is its /metrics."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from agents.engine.base import EngineMetrics

BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histograms."""


class Histogram:
    """Durations in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> Iterable[str]:
        """Cumulative buckets, sum and count."""
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum}"
        yield f"{name}_count {total}"


class Stats:
    """What the server has seen. `outcomes`: HTTP requests by (endpoint, outcome)."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.first_token = Histogram()
        self.request = Histogram()


def outcome(status: int) -> str:
    """An answer's status in one word."""
    words = {200: "ok", 429: "overloaded", 499: "cancelled"}
    return words.get(status) or ("failed" if status >= 500 else "refused")


def text(stats: Stats, engine: EngineMetrics, limits: Mapping[str, int], inside: int) -> str:
    """All figures. `inside`: replies that are being made or wait."""
    lines = ["# TYPE trajmill_requests_total counter"]
    for (endpoint, word), count in sorted(stats.outcomes.items()):
        lines.append(f'trajmill_requests_total{{endpoint="{endpoint}",outcome="{word}"}} {count}')
    tokens = {"prompt": engine.queried, "prefilled": engine.prefilled, "cached": engine.cached}
    hits = {"hit": engine.turn_hits, "miss": engine.turn_misses}
    full = {"used": engine.blocks_used, "total": engine.blocks_total}
    window = {"used": engine.window_used, "total": engine.window_total}
    lines += _family("trajmill_tokens_total", "counter", "kind", tokens | {"sampled": engine.sampled})
    lines += _family("trajmill_turns_total", "counter", "cache", hits)
    lines += _family("trajmill_kv_blocks", "gauge", "state", full)
    lines += _family("trajmill_window_blocks", "gauge", "state", window)
    lines += _family("trajmill_limit", "gauge", "of", limits)
    lines += _single("trajmill_replayed_tokens_total", "counter", engine.replayed)
    lines += _single("trajmill_preempted_total", "counter", engine.preempted)
    lines += _single("trajmill_parked_total", "counter", engine.parked)
    lines += _single("trajmill_evicted_blocks_total", "counter", engine.evicted)
    lines += _single("trajmill_steps_total", "counter", engine.steps)
    lines += _single("trajmill_running", "gauge", engine.running)
    lines += _single("trajmill_waiting", "gauge", engine.waiting)
    lines += _single("trajmill_replies_inside", "gauge", inside)
    lines += stats.first_token.lines("trajmill_first_token_seconds")
    lines += stats.request.lines("trajmill_request_seconds")
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, label: str, values: Mapping[str, int]) -> list[str]:
    return [f"# TYPE {name} {kind}", *(f'{name}{{{label}="{word}"}} {value}' for word, value in values.items())]


def _single(name: str, kind: str, value: int) -> list[str]:
    return [f"# TYPE {name} {kind}", f"{name} {value}"]
