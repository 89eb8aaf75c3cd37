"""Merging against mergekit 0.1.5 (`make oracle`), against the floor (reading, writing and hashing the same bytes), and
against itself when it is killed. Part of `make bench`; about ten minutes. `--only` picks parts.

Merges run as by default, one thread a core. Wall seconds are those of the machine as it is: `merge_load` says how busy.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from lines import say, skip
from merge_exact import killed, parity_with_mergekit
from merge_measure import BIG, ORACLE, SMALL, Figures, best, checkpoint, floor, ours, theirs, write_recipe


def speed(folder: Path) -> None:
    """Small models, then big ones; each figure against mergekit and against the floor."""
    out = folder / "out"
    small = [checkpoint(folder / f"s{i}", SMALL, i) for i in range(5)]
    linear, ties = (
        write_recipe(folder, "linear", small[:3], None),
        write_recipe(folder, "ties", small[1:], small[0]),
    )
    few, selected = [], []
    for _ in range(2):
        few.append(ours(linear, out))
        selected.append(ours(ties, out))
    small_linear, small_ties = best(few), best(selected)
    if ORACLE.exists():
        peer = best([theirs(ties, out) for _ in range(2)])
        what = "mergekit 0.1.5, ties, SmolLM2 shapes, base and 4 models"
        say("merge_ties_cpu", peer["cpu"], f"ours (peer / ours): {what}", small_ties["cpu"], "s", 4, at_least=True)
        say("merge_ties_memory", small_ties["memory"], what, peer["memory"], "MB", 0.25)
        say("merge_start_wall_peer", small_linear["start_wall"], "mergekit's imports", peer["start_wall"], "s", None)
    else:
        skip("merge_ties", f"no mergekit at {ORACLE}; make oracle")
    for path in small:
        shutil.rmtree(path)
    big = [checkpoint(folder / f"b{i}", BIG, i, shards=3) for i in range(3)]
    linear = write_recipe(folder, "linear", big, None)
    cores = len(os.sched_getaffinity(0))
    say("merge_load", os.getloadavg()[0], "cores that it shares with others", cores, "runnable", None)
    results: dict[str, list[Figures]] = {"ours": [], "floor": [], "hashed": [], "theirs": []}
    for _ in range(2):
        results["floor"].append(floor(False, out, big))
        results["hashed"].append(floor(True, out, big))
        results["ours"].append(ours(linear, out))
        if ORACLE.exists():
            results["theirs"].append(theirs(linear, out))
    mine = best(results["ours"])
    size = "3 x 2.2 GB bf16, 3 shards each"
    hashed = best(results["hashed"])["cpu"]
    say("merge_linear_cpu", mine["cpu"], f"read + write + SHA-256, {size}", hashed, "s", 1.5)
    say("merge_linear_cpu_bare", mine["cpu"], f"read + write, {size}", best(results["floor"])["cpu"], "s", None)
    say("merge_memory_big_small", mine["memory"], "the same on 3 x 270 MB", small_linear["memory"], "MB", 1.2)
    if ORACLE.exists():
        peer = best(results["theirs"])
        say(
            "merge_linear_wall",
            peer["wall"],
            f"ours (mergekit / ours), {size}",
            mine["wall"],
            "s",
            3,
            at_least=True,
        )
        say("merge_linear_cpu_mergekit", peer["cpu"], f"ours (mergekit / ours), {size}", mine["cpu"], "s", None)
        say("merge_linear_memory", mine["memory"], f"mergekit 0.1.5, {size}", peer["memory"], "MB", 0.1)
    else:
        skip("merge_linear_wall", f"no mergekit at {ORACLE}; make oracle")


PARTS: dict[str, Callable[[Path], None]] = {"parity": parity_with_mergekit, "killed": killed, "speed": speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    for part in parser.parse_args().only:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TRAJMILL_BENCH_DIR")) as name:
            PARTS[part](Path(name))


if __name__ == "__main__":
    main()
