"""`python -m pipelines.readers ROOT`: what the readers make of a folder, counted by format and by reason of reject."""

import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipelines.readers import input_files, partner_of, read_file
from schemas.session import Session


def main(root: Path) -> None:
    """Print sessions, messages, calls and rejects by format, then rejects by format and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    reasons: Counter[tuple[str, str]] = Counter()
    for path in input_files(root):
        formats = set()
        for row in read_file(path, root=root, partner=partner_of(path, root)):
            name = row.format or "(none)"
            formats.add(name)
            if isinstance(row, Session):
                counts[name, "sessions"] += 1
                counts[name, "messages"] += len(row.messages)
                counts[name, "calls"] += sum(len(message.tool_calls) for message in row.messages)
                counts[name, "results"] += sum(message.role == "tool" for message in row.messages)
                counts[name, "paired"] += sum(message.answers_message is not None for message in row.messages)
            else:
                counts[name, "rejects"] += 1
                reasons[name, row.reason] += 1
        for name in formats:
            counts[name, "files"] += 1
    columns = ("files", "sessions", "messages", "calls", "results", "paired", "rejects")
    table = Table("format", *columns)
    for name in sorted({name for name, _ in counts}):
        table.add_row(name, *(str(counts[name, column]) for column in columns))
    console = Console(width=100)
    console.print(table)
    for (name, reason), times in sorted(reasons.items()):
        console.print(f"{name}: {times} x {reason}", highlight=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
