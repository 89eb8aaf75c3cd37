"""What the loop found, held against its bars: `trajmill loop` makes the figures, this reads them.

The loop takes hours; `TRAJMILL_LOOP` names the folder of one that has run (default: loops/full).
"""

import json
import os
from pathlib import Path

from lines import say, skip

ROOT = Path(__file__).resolve().parents[2]
LOOP = Path(os.environ.get("TRAJMILL_LOOP", ROOT / "loops" / "full"))
MIXTURE, MERGE = "mixture, all steps", "merge, best by development tasks"


def main() -> None:
    report = LOOP / "report.json"
    if not report.exists():
        skip("loop", f"{report.name} is not in the loop folder; run `trajmill loop`, or set TRAJMILL_LOOP")
        return
    rows = [row for row in json.loads(report.read_text())["tables"]["test"] if not row["constrained"]]
    rates = {(row["arm"], row["scaffold"]): row["rate"] for row in rows}
    scaffolds = sorted({scaffold for _, scaffold in rates})
    for scaffold in scaffolds:
        for (arm, through), rate in rates.items():
            if through == scaffold and arm.startswith("base") and arm != "base, zero-shot":
                say(f"loop_base_few_shot_{scaffold}", rate, "none", 0, "share solved", 0.1)
        for name, arm, bar in (
            ("parent", f"parent {scaffold}", 0.6), ("mixture", MIXTURE, 0.65), ("merge", MERGE, 0.65),
        ):  # fmt: skip
            if (arm, scaffold) in rates:
                say(f"loop_{name}_{scaffold}", rates[arm, scaffold], "none", 0, "share solved", bar, at_least=True)
            else:
                skip(f"loop_{name}_{scaffold}", "not evaluated yet")
    arms = [row for row in rows if row["arm"] in (MIXTURE, MERGE)]
    say("loop_seeds", min((row["seeds"] for row in arms), default=0), "none", 0, "seeds", 3, at_least=True)
    say("loop_tasks", min((row["tasks"] for row in arms), default=0), "none", 0, "tasks", 200, at_least=True)


if __name__ == "__main__":
    main()
