"""The report of a loop and the gate of its merges, from outcomes that are made up here."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pipelines.posttrain import gate
from pipelines.posttrain.report import found_in, write_report
from schemas.errors import InputError
from schemas.evaluation import Outcome
from schemas.posttrain import LoopSettings

SETTINGS = LoopSettings()


def outcomes(arm: str, solved: range, scaffold: str = "tool_json", seed: int = 0, tasks: int = 40) -> list[Outcome]:
    return [
        Outcome(arm=arm, scaffold=scaffold, task_id=f"t{i:02}", wording_id=f"w{i}", seed=seed, repeat=0,
                passed=i in solved, tokens=20)
        for i in range(tasks)
    ]  # fmt: skip


def keep(out: Path, found: list[Outcome]) -> None:
    folder = out / "outcomes" / "test" / f"seed-{found[0].seed}"
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.iterdir()))
    (folder / f"{number}.jsonl").write_text("".join(o.model_dump_json() + "\n" for o in found))


def test_a_report_of_what_is_there_so_far(tmp_path: Path) -> None:
    keep(tmp_path, outcomes("base, zero-shot", range(0)))
    for seed in (0, 1):
        keep(tmp_path, outcomes("router", range(30), seed=seed))
    keep(tmp_path, outcomes("merge <b>&", range(10)))
    page = write_report(tmp_path, SETTINGS).read_text()
    assert "| base, zero-shot | 1 | 0 [0–9] | – |" in page
    assert "| router | 2 | 75 [" in page and "merge <b>& | router | tool_json | -50 [" in page
    names = [e.text for e in ET.parse(tmp_path / "report.svg").iter() if e.text and e.text.strip()]
    assert "merge <b>&" in names
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["comparisons"][0]["difference"] == -0.5 and data["comparisons"][0]["pairs"] == 40
    assert [row["arm"] for row in data["tables"]["test"]] == ["base, zero-shot", "router", "merge <b>&"]


def test_nothing_evaluated(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing has been evaluated"):
        write_report(tmp_path, SETTINGS)


@pytest.mark.parametrize("line", ["{", "{}", '{"arm": "a"}', "null"])
def test_a_line_that_is_no_outcome_is_named(line: str, tmp_path: Path) -> None:
    keep(tmp_path, outcomes("router", range(3)))
    path = tmp_path / "outcomes" / "test" / "seed-0" / "0.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match=r"0\.jsonl:41: no outcome"):
        found_in(tmp_path / "outcomes" / "test")


def test_the_gate_promotes_what_is_not_worse(tmp_path: Path) -> None:
    (tmp_path / "lineage.json").write_text('{"parents": []}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    parents = {s: outcomes(f"parent {s}", range(20), s) for s in ("tool_json", "bash_minimal")}
    good = {s: (outcomes("merge", range(1, 20), s), parents[s]) for s in parents}
    lineage = gate.record(tmp_path, gate.decide(good))
    assert lineage["gate"]["promoted"] and lineage["parents"] == []
    assert lineage["gate"]["evidence"]["tool_json"]["only_b"] == 1
    bad = good | {"bash_minimal": (outcomes("merge", range(5), "bash_minimal"), parents["bash_minimal"])}
    gate.record(tmp_path, gate.decide(bad))
    written = json.loads((tmp_path / "lineage.json").read_text())
    assert not written["gate"]["promoted"] and written["gate"]["weights"].keys() == {"model.safetensors"}
    with pytest.raises(InputError, match="no parent"):
        gate.decide({})
    (tmp_path / "lineage.json").unlink()
    with pytest.raises(InputError, match=r"lineage\.json: not there"):
        gate.record(tmp_path, gate.decide(good))
