"""The report of a loop: one table, one plot, the comparisons. Called by the loop whenever it ends.

It reads `outcomes/` alone, so what a loop that is not finished has found so far can be shown too.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.files import write_text
from pipelines.posttrain.arms import read_outcomes
from pipelines.posttrain.checkpoint import read_lineage
from pipelines.posttrain.evaluate import Setting
from pipelines.posttrain.resampling import Comparison, Row, adjusted, compare, row
from pipelines.posttrain.statistics import detectable_difference
from prompts import render
from schemas.errors import InputError
from schemas.evaluation import Outcome
from schemas.posttrain import LoopSettings, Start

MIXTURE = "mixture, all steps"
ROUTER = "router"
BEST_MERGE = "merge, best by development tasks"
BEST_PARENT = "parent, best by development tasks"
"""Arms under a second name: what the choice on development tasks came to, seed by seed."""
START_ARMS: dict[Start, str] = {"merge": BEST_MERGE, "mixture": MIXTURE, "parent": BEST_PARENT}
"""Which arm round two's starts are."""
_ORDER = ("base", "parent", "mixture", ROUTER, "soup", "merge", "round 2")
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
_LEFT, _WIDE, _LINE, _TOP = 250, 460, 26, 44
"""Pixels of the plot: names, axis, height of an arm, space above the first."""
_TYPICAL_RATE = 0.6
"""For which the report says what difference could be seen."""

Found = dict[str, dict[Setting, list[Outcome]]]
"""Outcomes by arm and setting, all seeds together."""


@dataclass(frozen=True)
class Against:
    """`arm` compared with `other` through a setting on the seeds that both have; `p_all`: p corrected for the table."""

    arm: str
    other: str
    setting: Setting
    found: Comparison
    p_all: float


def write_report(out: Path, settings: LoopSettings) -> Path:
    """`report.md`, `report.svg` and `report.json` in a loop folder; the first is given back.

    InputError when nothing has been evaluated.
    """
    sets = {name: found_in(out / "outcomes" / name) for name in ("test", "transfer")}
    if not sets["test"]:
        raise InputError(f"{out / 'outcomes' / 'test'}: nothing has been evaluated")
    tables = {name: _rows(found) for name, found in sets.items() if found}
    against = comparisons(sets["test"])
    columns = sorted({s for rows in tables["test"].values() for s in rows}, key=_column)
    write_text(out / "report.svg", plot(tables["test"], columns))
    tasks = max(r.tasks for rows in tables["test"].values() for r in rows.values())
    page = render(
        "cards/loop.md",
        tables=tables,
        columns=columns,
        against=against,
        gates=list(_gates(out)),
        settings=settings,
        tasks=tasks,
        detectable=_detectable(tasks),
        seeds=sorted({o.seed for by in sets["test"].values() for found in by.values() for o in found}),
        samples=_counts(out / "run" / "shards" / "manifest.json"),
    )
    data = {
        "tables": {
            name: [_plain(row) for rows in table.values() for row in rows.items()] for name, table in tables.items()
        },
        "comparisons": [
            {"arm": a.arm, "other": a.other, "setting": str(a.setting), "p_all": a.p_all} | vars(a.found)
            for a in against
        ],
    }
    write_text(out / "report.json", json.dumps(data, indent=1) + "\n")
    write_text(out / "report.md", page + "\n")
    return out / "report.md"


def _detectable(tasks: int) -> float | None:
    try:
        return detectable_difference(tasks, _TYPICAL_RATE)
    except InputError:  # so few tasks show nothing
        return None


def found_in(folder: Path) -> Found:
    """All outcomes below a set's folder, arms in the order of the report. InputError as of `read_outcomes`."""
    found: Found = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("seed-*/*.jsonl")):
        for outcome in read_outcomes(path):
            found[outcome.arm][Setting(outcome.scaffold, outcome.constrained)].append(outcome)
    return {arm: dict(found[arm]) for arm in sorted(found, key=_place)}


def _place(arm: str) -> tuple[int, str]:
    return next((i for i, begin in enumerate(_ORDER) if arm.startswith(begin)), len(_ORDER)), arm


def _column(setting: Setting) -> tuple[str, bool]:
    return setting.scaffold, setting.constrained


def _rows(found: Found) -> dict[str, dict[Setting, Row]]:
    return {arm: {s: row(outcomes) for s, outcomes in by.items()} for arm, by in found.items()}


def comparisons(found: Found) -> list[Against]:
    """Mixtures, merges and soups (on their scaffold) against the router; round two's merges against their start.

    The best merge is left out where it is one merge under another name: a comparison counts once.
    """
    starts = {f"round 2 from {name}, merge": arm for name, arm in START_ARMS.items()}
    asked = [(arm, ROUTER) for arm in found if arm.startswith(("mixture", "merge", "soup")) and not _twice(arm, found)]
    asked += [(arm, starts[arm]) for arm in found if arm in starts]
    made: dict[tuple[str, str, Setting], Comparison] = {}
    for arm, other in asked:
        for setting, outcomes in found[arm].items():
            seeds = {o.seed for o in outcomes} & {o.seed for o in found.get(other, {}).get(setting, [])}
            if seeds:
                made[arm, other, setting] = compare(_of(outcomes, seeds), _of(found[other][setting], seeds))
    names = {" | ".join(map(str, key)): key for key in made}
    corrected = adjusted({name: made[key] for name, key in names.items()})
    return [Against(*key, made[key], corrected[name]) for name, key in names.items()]


def _twice(arm: str, found: Found) -> bool:
    return arm == BEST_MERGE and len({o.seed for outcomes in found[arm].values() for o in outcomes}) == 1


def _of(outcomes: Iterable[Outcome], seeds: set[int]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.seed in seeds]


def _gates(out: Path) -> Iterable[tuple[str, bool]]:
    for path in sorted(out.glob("checkpoints/seed-*/*/lineage.json")):
        lineage = read_lineage(path.parent) or {}
        if "gate" in lineage:
            yield f"{path.parent.parent.name}/{path.parent.name}", lineage["gate"]["promoted"]


def _counts(manifest: Path) -> dict[str, int]:
    return dict(json.loads(manifest.read_text("utf-8"))["samples"]) if manifest.exists() else {}


def _plain(item: tuple[Setting, Row]) -> dict[str, Any]:
    setting, found = item
    return vars(found) | {"constrained": setting.constrained}


def plot(table: dict[str, dict[Setting, Row]], columns: Sequence[Setting]) -> str:
    """An SVG: a line per arm, a dot and its interval per setting."""
    arms = []
    for number, (arm, rows) in enumerate(table.items()):
        marks = []
        for i, setting in enumerate(columns):
            if setting in rows:
                found = rows[setting]
                y = _TOP + number * _LINE + 7 + 6 * i
                marks.append(
                    {"y": y, "colour": _COLOURS[i % len(_COLOURS)]} | _pixels(found.low, found.rate, found.high)
                )
        arms.append({"name": arm, "y": _TOP + number * _LINE, "marks": marks})
    legend = [{"name": str(s), "colour": _COLOURS[i % len(_COLOURS)], "x": 10 + 200 * i} for i, s in enumerate(columns)]
    axis = [{"x": _LEFT + _WIDE * i / 10, "text": f"{10 * i}"} for i in range(0, 11, 2)]
    height = _TOP + _LINE * len(arms) + 24
    return render(
        "cards/loop.svg", arms=arms, legend=legend, axis=axis, width=_LEFT + _WIDE + 30, height=height, top=_TOP,
        line=_LINE,
    ) + "\n"  # fmt: skip


def _pixels(low: float, rate: float, high: float) -> dict[str, float]:
    names = {"low": low, "rate": rate, "high": high}
    return {name: round(_LEFT + _WIDE * value, 1) for name, value in names.items()}
