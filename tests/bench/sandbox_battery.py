"""Sandbox bench: the isolation battery (tests/isolation) in a pytest of its own, counted by host mode."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from lines import say

ROOT = Path(__file__).resolve().parents[2]


def battery() -> None:
    """The mode is among a test's parameters, root where none is. What does not apply to a mode is named on stderr."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "battery.xml")
        command = [sys.executable, "-m", "pytest", "-q", "tests/isolation", f"--junitxml={report}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not report.exists():
            raise RuntimeError(f"the battery did not run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    rootless = [case for case in cases if "rootless" in re.split(r"[\[\]-]", str(case.get("name")))]
    for mode, its in (("rootless", rootless), ("root", [case for case in cases if case not in rootless])):
        bad = [(part.tag, case) for case in its for part in case if part.tag in {"failure", "error", "skipped"}]
        skipped = sum(kind == "skipped" for kind, _ in bad)
        held = len(its) - len({id(case) for _, case in bad})
        unit = f"held; {skipped} more do not apply here"
        say(f"sandbox_battery_{mode}", held, "attempts", len(its) - skipped, unit, at_least=True)
        for kind, case in bad:
            print(f"{kind}: {case.get('classname')} {case.get('name')}", file=sys.stderr)
