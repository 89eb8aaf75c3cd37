"""What did not go through, and why. Every stage that refuses something makes its rows here."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipelines.store import write_parquet
from schemas.ids import content_id
from schemas.session import Reject
from schemas.tables import to_arrow


def make_reject(stage: str, reason: str, **fields: Any) -> Reject:
    """A row of the rejects table; `fields` are those of `Reject`."""
    return Reject(reject_id=content_id("reject", stage, reason, fields), stage=stage, reason=reason, **fields)


def write_rejects(path: Path, rejects: Iterable[Reject]) -> None:
    """Write one stage's part of the rejects table, sorted by id, equal ones once."""
    unique = {reject.reject_id: reject for reject in rejects}
    path.parent.mkdir(exist_ok=True)
    write_parquet(path, to_arrow("rejects", [unique[key] for key in sorted(unique)]))
