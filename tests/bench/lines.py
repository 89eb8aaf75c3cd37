"""How the benches report: one JSON line a figure. Called by bench_engine.py, bench_sandbox.py and their parts."""

import json


def say(
    figure: str, ours: float, peer: str, against: float, unit: str, bar: float | None = 1.0, *, at_least: bool = False
) -> None:
    """One JSON line. `bar` is for the ratio (for `ours` where `against` is 0); None where the issue sets none."""
    ratio = ours / against if against else float(ours)
    holds = None if bar is None else ratio >= bar if at_least else ratio <= bar
    line = {"figure": figure, "ours": round(ours, 3), "against": round(against, 3), "peer": peer}
    line |= {"ratio": round(ratio, 3), "unit": f"{unit}, at least" if at_least else unit, "bar": bar, "holds": holds}
    print(json.dumps(line), flush=True)


def skip(figure: str, why: str) -> None:
    """A figure that cannot be had here, or by this user."""
    print(json.dumps({"figure": figure, "skipped": why}), flush=True)
