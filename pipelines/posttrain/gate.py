"""Whether a merge may be promoted: not worse than any parent on that parent's own scaffold. Called by the loop."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.files import sha256_of, write_text
from pipelines.posttrain.checkpoint import read_lineage
from pipelines.posttrain.resampling import Comparison, compare
from schemas.errors import InputError
from schemas.evaluation import Outcome


@dataclass(frozen=True)
class Decision:
    """`promoted`: no comparison's interval lies wholly below zero. `evidence`: merge against parent, by scaffold.

    That an interval reaches zero is no proof of equality: its lower end says how much worse the merge may still be.
    """

    promoted: bool
    evidence: dict[str, Comparison]


def decide(pairs: Mapping[str, tuple[Sequence[Outcome], Sequence[Outcome]]]) -> Decision:
    """From outcomes of merge and parent on the same tasks, by the parent's scaffold. InputError without any."""
    if not pairs:
        raise InputError("gate: no parent to compare the merge with")
    evidence = {scaffold: compare(merge, parent) for scaffold, (merge, parent) in sorted(pairs.items())}
    return Decision(all(found.high >= 0 for found in evidence.values()), evidence)


def record(folder: Path, decision: Decision) -> dict[str, Any]:
    """Put the decision into `folder/lineage.json`, beside the hashes of the weights that it is about."""
    lineage = read_lineage(folder)
    if lineage is None:
        raise InputError(f"{folder / 'lineage.json'}: not there; a merge writes it")
    weights = {path.name: sha256_of(path) for path in sorted(folder.glob("*.safetensors"))}
    gate = {"promoted": decision.promoted, "weights": weights, "evidence": _plain(decision)}
    if lineage.get("gate") != gate:
        lineage = lineage | {"gate": gate}
        write_text(folder / "lineage.json", json.dumps(lineage, indent=2, ensure_ascii=False) + "\n")
    return lineage


def _plain(decision: Decision) -> dict[str, Any]:
    return {scaffold: asdict(found) for scaffold, found in decision.evidence.items()}
