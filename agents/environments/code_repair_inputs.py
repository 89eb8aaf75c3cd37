"""Random inputs for the functions of the reference packages. Called by `code_repair` to find telling ones."""

import random
from collections.abc import Callable, Sequence
from typing import Any

Calls = list[tuple[str, Sequence[Any]]]
_WORDS = ("red", "blue", "amber", "stone", "river", "cloud", "lamp", "window", "a", "to", "paper", "engine")
_NAMES = ("bolt", "nut", "gear", "hinge", "lamp", "cable")
_PEOPLE = ("ana", "ben", "cleo", "dan")


def _intervals(rng: random.Random) -> list[list[int]]:
    starts = [rng.randint(0, 24) for _ in range(rng.randint(0, 5))]
    return [[start, start + rng.randint(1, 6)] for start in starts]


def _text(rng: random.Random, low: int = 0, high: int = 9) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(rng.randint(low, high)))


def _version(rng: random.Random) -> str:
    return ".".join(str(rng.choice((0, 1, 2, 3, 9, 10))) for _ in range(rng.choice((2, 3, 3, 3))))


def _grid(rng: random.Random, low: int = 0, high: int = 4) -> list[list[int]]:
    rows, columns = rng.randint(low, high), rng.randint(1, 4)
    return [[rng.randint(0, 3) for _ in range(columns)] for _ in range(rows)]


def _bits(rng: random.Random) -> list[list[int]]:
    return [[int(cell > 1) for cell in row] for row in _grid(rng)]


def _numbers(rng: random.Random, most: int = 12) -> list[int]:
    return [rng.randint(1, 9) for _ in range(rng.randint(0, most))]


def _cell(rng: random.Random) -> Sequence[Any]:
    grid = _grid(rng, 2)
    return [grid, rng.randrange(len(grid)), rng.randrange(len(grid[0]))]


def _inventory(rng: random.Random) -> Calls:
    calls: Calls = [("Inventory", [])]
    for _ in range(rng.randint(2, 4)):
        calls.append((".add", [rng.choice(_NAMES), rng.randint(0, 7), rng.choice((5, 20, 20, 45))]))
    calls.append((".remove", [rng.choice(_NAMES), rng.randint(1, 6)]))
    calls += [(".value", []), (".low_stock", rng.choice(([], [3]))), (".cheapest", [])]
    return calls


def _ledger(rng: random.Random) -> Calls:
    calls: Calls = [("Ledger", [])]
    for _ in range(rng.randint(1, 3)):
        calls.append((".deposit", [rng.choice(_PEOPLE), rng.choice((0, 5, 10, 10, 20))]))
    for _ in range(rng.randint(1, 2)):
        calls.append((".transfer", [rng.choice(_PEOPLE), rng.choice(_PEOPLE), rng.choice((5, 10, 15))]))
    return [*calls, (".history", [rng.choice(_PEOPLE), *rng.choice(([], [1]))]), (".richest", [])]


def _queue(rng: random.Random) -> Calls:
    calls: Calls = [("WorkQueue", rng.choice(([], [2], [3])))]
    for _ in range(rng.randint(1, 4)):
        calls.append((".push", [rng.choice(_NAMES), *rng.choice(([], [1], [5], [9]))]))
    return [*calls, (".waiting", rng.choice(([], [1], [2]))), (".pop", []), (".pop", [])]


def _calls(
    name: str, arguments: Callable[[random.Random], Sequence[Any]], times: int = 1
) -> Callable[[random.Random], Calls]:
    return lambda rng: [(name, arguments(rng)) for _ in range(times)]


def _counts(rng: random.Random, top: int = 12) -> dict[str, int]:
    return {name: rng.randint(0, top) for name in rng.sample(_NAMES, rng.randint(0, 4))}


INPUTS: dict[str, dict[str, Callable[[random.Random], Calls]]] = {
    "intervals": {
        "merge": _calls("merge", lambda r: [_intervals(r)]),
        "total_length": _calls("total_length", lambda r: [_intervals(r)]),
        "overlaps": _calls("overlaps", lambda r: [[a := r.randint(0, 9), a + 3], [b := r.randint(0, 9), b + 2]]),
        "gaps": _calls("gaps", lambda r: [_intervals(r), r.randint(0, 9), r.randint(12, 28)]),
        "clip": _calls("clip", lambda r: [_intervals(r), r.randint(2, 9), r.randint(10, 22)]),
    },
    "textkit": {
        "wrap": _calls("wrap", lambda r: [_text(r), r.randint(4, 16)]),
        "slugify": _calls(
            "slugify",
            lambda r: [
                r.choice(("", " ", "- "))
                + _text(r, 1, 4).title().replace(" ", r.choice(" -_/"))
                + r.choice(("", "!", " 2"))
            ],
        ),
        "truncate": _calls(
            "truncate",
            lambda r: [t := _text(r, 2, 4), len(t) + r.choice((-4, -2, -1, 0, 0, 1)), *r.choice(([], ["~"]))],
        ),
        "count_words": _calls(
            "count_words",
            lambda r: [_text(r).title() + " " + _text(r, 1, 4), *r.choice(([], [["Red", "to"]], [["stone", "A"]]))],
        ),
        "initials": _calls("initials", lambda r: [_text(r, 1, 4).replace(" ", r.choice((" ", "-", "  ")))]),
        "indent": _calls(
            "indent",
            lambda r: [[_text(r, 0, 2) for _ in range(r.randint(1, 3))] + [r.choice(("", "  "))], *r.choice(([], [2]))],
        ),
    },
    "inventory": {
        "Inventory": _inventory,
        "reorder": _calls("reorder", lambda r: [_counts(r), r.randint(4, 12), r.randint(2, 5)]),
    },
    "schedule": {
        "to_minutes": _calls(
            "to_minutes", lambda r: [f"{r.choice((0, 9, 12, 23, 24)):02d}:{r.choice((0, 5, 30, 59, 60)):02d}"]
        ),
        "to_clock": _calls("to_clock", lambda r: [r.choice((0, 59, 60, 725, 1439, 1440, 1500, r.randint(0, 2000)))]),
        "free_slots": _calls(
            "free_slots",
            lambda r: [
                [[a, a + r.choice((30, 60, 90))] for a in r.sample(range(480, 1020, 30), r.randint(0, 3))],
                480,
                1020,
                r.choice((30, 60, 90, 120)),
            ],
        ),
        "conflicts": _calls(
            "conflicts",
            lambda r: [[[a, a + r.choice((30, 60))] for a in r.choices(range(540, 720, 30), k=r.randint(0, 4))]],
        ),
        "next_run": _calls("next_run", lambda r: [r.randint(0, 120), r.choice((5, 10, 15)), *r.choice(([], [0], [3]))]),
        "rooms_needed": _calls(
            "rooms_needed",
            lambda r: [[[a, a + r.choice((30, 60))] for a in r.choices(range(540, 720, 30), k=r.randint(0, 5))]],
        ),
    },
    "ledger": {
        "Ledger": _ledger,
        "split_bill": _calls("split_bill", lambda r: [r.randint(1, 100), r.randint(1, 6)]),
        "add_fee": _calls("add_fee", lambda r: [r.randint(0, 9000), r.randint(0, 5), *r.choice(([], [30]))]),
        "collect_tags": _calls(
            "collect_tags",
            lambda r: [
                [r.choice(("#new", "sent #paid", "#new #late", "none")) for _ in range(r.randint(0, 3))],
                *r.choice(([], [], [["#old"]])),
            ],
            times=2,
        ),
    },
    "parsing": {
        "parse_duration": _calls(
            "parse_duration",
            lambda r: [
                r.choice(
                    (
                        "",
                        str(r.randint(1, 99)),
                        f"2h{r.randint(1, 9)}",
                        "1h",
                        "2h15m",
                        "3m20s",
                        "1d2h",
                        "h5",
                        f"{r.randint(1, 90)}m",
                        f"{r.randint(1, 9)}h{r.randint(1, 59)}s",
                    )
                )
            ],
        ),
        "parse_pairs": _calls(
            "parse_pairs",
            lambda r: [
                r.choice((";", "; ")).join(
                    r.choice(("a=1", "b=x=y", "flag", "c = 3", f"k={r.randint(1, 99)}")) for _ in range(r.randint(0, 4))
                )
            ],
        ),
        "parse_ranges": _calls(
            "parse_ranges",
            lambda r: [
                r.choice((",", ", ")).join(
                    r.choice((str(r.randint(1, 9)), f"{(a := r.randint(1, 9))}-{a + r.randint(0, 3)}"))
                    for _ in range(r.randint(0, 3))
                )
            ],
        ),
        "split_fields": _calls(
            "split_fields",
            lambda r: [",".join(r.choice(("a", "bc", '"x,y"', '"q"', "")) for _ in range(r.randint(1, 4)))],
        ),
        "balanced": _calls(
            "balanced",
            lambda r: [
                r.choice(
                    (
                        "([])",
                        "([)]",
                        "(",
                        "]",
                        "()[]",
                        "(()",
                        "".join(r.choice("()[]x") for _ in range(r.randint(0, 4))),
                    )
                )
            ],
            times=4,
        ),
    },
    "grid": {
        "neighbours": _calls("neighbours", _cell),
        "rotate": _calls("rotate", lambda r: [_grid(r, 1)]),
        "column_sums": _calls("column_sums", lambda r: [_grid(r)]),
        "regions": _calls("regions", lambda r: [_bits(r), *r.choice(([], [0], [1]))]),
        "border": _calls("border", lambda r: [_grid(r, 1)]),
        "diagonal": _calls("diagonal", lambda r: [_grid(r), *r.choice(([], [1]))]),
    },
    "paging": {
        "page_count": _calls("page_count", lambda r: [max(0, r.randint(-6, 30)), r.randint(3, 12)]),
        "page": _calls("page", lambda r: [_numbers(r, 25), r.randint(0, 3), *r.choice(([], [4], [5]))]),
        "window": _calls("window", lambda r: [c := r.randint(1, 9), c + r.randint(0, 4), *r.choice(([], [1], [3]))]),
        "batches": _calls("batches", lambda r: [_numbers(r), r.randint(1, 4)]),
        "chunk_by_sum": _calls("chunk_by_sum", lambda r: [_numbers(r), r.randint(6, 14)]),
        "interleave": _calls("interleave", lambda r: [[_numbers(r, 4) for _ in range(r.randint(0, 3))]]),
        "positions": _calls("positions", lambda r: [_numbers(r, 5), *r.choice(([], [], [{"1": [7]}]))], times=2),
    },
    "versions": {
        "parse": _calls("parse", lambda r: [r.choice(("", "v")) + _version(r) + r.choice(("", "", ".4"))]),
        "compare": _calls("compare", lambda r: [_version(r), _version(r)], times=2),
        "bump": _calls("bump", lambda r: [_version(r), *r.choice(([], ["major"], ["minor"]))]),
        "latest": _calls(
            "latest", lambda r: [[_version(r) for _ in range(r.randint(0, 4))], *r.choice(([], [1], [2], [0]))]
        ),
        "compatible": _calls(
            "compatible",
            lambda r: r.choice(([_version(r), _version(r)], [_version(r), "1.2.0"], ["1.2", "1.2.0"])),
            times=4,
        ),
        "outdated": _calls(
            "outdated",
            lambda r: [{n: _version(r) for n in r.sample(_NAMES, 3)}, {n: _version(r) for n in r.sample(_NAMES, 4)}],
        ),
    },
    "workqueue": {
        "WorkQueue": _queue,
        "share": _calls("share", lambda r: [[r.choice(_NAMES) for _ in range(r.randint(0, 7))], r.randint(1, 3)]),
        "retry_delays": _calls("retry_delays", lambda r: [r.randint(0, 7), *r.choice(([], [1], [5, 30]))]),
        "least_loaded": _calls("least_loaded", lambda r: [_counts(r, 3)]),
        "finish_order": _calls("finish_order", lambda r: [_counts(r), *r.choice(([], [10]))]),
    },
}
