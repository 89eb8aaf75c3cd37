"""The two files that describe a set of shards: `manifest.json` for programs, `README.md` for people and `datasets`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.files import write_text
from prompts import render
from schemas.tables import arrow_schema

if TYPE_CHECKING:
    from pipelines.shards import ShardFacts, ShardFile

SYNTHETIC = ("blueprint", "scripted")
"""Policies whose replies no model chose."""


def write(folder: Path, files: Sequence["ShardFile"], facts: "ShardFacts", counts: dict[str, Any]) -> None:
    """Write the card and then the manifest of a shards folder. No clock value: the same shards, the same bytes."""
    by_policy = counts["kept_by_policy"]
    synthetic = sum(n for policy, n in by_policy.items() if policy in SYNTHETIC)
    counts = counts | {"synthetic": synthetic, "sampled": counts["kept"] - synthetic}
    configs = sorted({file.config for file in files})
    totals = {
        config: {
            "files": sum(f.config == config for f in files),
            "rows": sum(f.rows for f in files if f.config == config),
            "bytes": sum(f.bytes for f in files if f.config == config),
        }
        for config in configs
    }
    columns = {
        config: [
            {"name": f.name, "type": str(f.type), "description": f.metadata[b"description"].decode().replace("\n", " ")}
            for f in arrow_schema(config)
        ]
        for config in configs
    }
    card = render("cards/shards.md", counts=counts, totals=totals, columns=columns, facts=asdict(facts))
    write_text(folder / "README.md", card + "\n")
    manifest = {
        "manifest_version": 1,
        **asdict(facts),
        "samples": counts,
        "configs": totals,
        "files": [asdict(file) for file in files],
    }
    write_text(folder / "manifest.json", json.dumps(manifest, indent=1, sort_keys=True) + "\n")
