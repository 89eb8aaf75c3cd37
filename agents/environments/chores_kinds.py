"""What each kind of `file_chores` asks for: files, checks and the values that its templates need. No texts here."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from agents.environments.chores_tree import Paper, log_lines, papers, spec
from schemas.pattern_views import LengthClass
from schemas.task import FileSpec

Check = dict[str, object]


@dataclass(frozen=True)
class Chore:
    """A chore on its files. `before` names the points that hold from the start."""

    files: list[FileSpec]
    points: dict[str, Check]
    before: list[str]
    values: dict[str, object]
    answer: list[str]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _unchanged(files: list[FileSpec]) -> Check:
    return {"check": "present", "files": {file.path: _digest(file.content) for file in files}}


def _folder(rng: random.Random) -> str:
    return rng.choice(("inbox", "docs", "share", "dump", "archive", "desk"))


def _nested(rng: random.Random, folder: str, found: list[Paper]) -> list[FileSpec]:
    rooms = ["", "old/", "2024/", "team/shared/"]
    return [spec(f"{folder}/{rng.choice(rooms)}{paper.name}.{paper.extension}", paper.content) for paper in found]


def find_text(rng: random.Random, length: LengthClass) -> Chore:
    """List the files that contain a phrase."""
    phrase = rng.choice(("overdue", "blue folder", "signed copy", "second reminder", "warehouse key", "on hold"))
    folder = _folder(rng)
    files = _nested(rng, folder, papers(rng, length, phrase))
    hits = sorted(file.path for file in files if phrase in file.content.lower())
    out = rng.choice(("found.txt", "matches.txt", "result/list.txt", "files_to_check.txt"))
    points: dict[str, Check] = {
        "list": {"check": "lines", "path": out, "lines": hits, "paths": True},
        "files_unchanged": _unchanged(files),
    }
    values: dict[str, object] = {"folder": folder, "phrase": phrase, "out": out, "count": len(hits)}
    return Chore(files, points, ["files_unchanged"], values, ["\n".join(hits)])


def _moved(files: list[FileSpec], new: dict[str, str]) -> dict[str, Check]:
    """Checks that files went to new paths, and only those."""
    content = {file.path: file.content for file in files}
    kept = [file for file in files if file.path not in new]
    return {
        "new_places": {"check": "present", "files": {new[path]: _digest(content[path]) for path in new}},
        "old_places": {"check": "absent", "paths": sorted(new)},
        "nothing_lost": {"check": "contents", "digests": [_digest(file.content) for file in files]},
        "others_kept": _unchanged(kept),
    }


def _relocation(files: list[FileSpec], new: dict[str, str], values: dict[str, object]) -> Chore:
    points = _moved(files, new)
    return Chore(files, points, ["nothing_lost", "others_kept"], {**values, "count": len(new)}, sorted(new.values()))


def sort_folders(rng: random.Random, length: LengthClass) -> Chore:
    """Move files into folders by extension, by month in the name, or by the type in the text."""
    rule = rng.choice(("extension", "month", "type"))
    folder = _folder(rng)
    target = rng.choice(("sorted", "filed", f"{folder}/by_{rule}"))
    files, new = [], {}
    for paper in papers(rng, length):
        dated = rule == "month" and rng.random() < 0.8
        name = f"{paper.day.isoformat()}_{paper.name}" if dated else paper.name
        path = f"{folder}/{name}.{paper.extension}"
        files.append(spec(path, paper.content))
        room = {"extension": paper.extension, "month": paper.day.isoformat()[:7], "type": paper.kind}[rule]
        if rule != "month" or dated:
            new[path] = f"{target}/{room}/{name}.{paper.extension}"
    return _relocation(files, new, {"folder": folder, "target": target, "rule": rule, "out": target})


def rename(rng: random.Random, length: LengthClass) -> Chore:
    """Rename files in place by a scheme."""
    scheme = rng.choice(("date_first", "plain", "numbered"))
    folder = _folder(rng)
    files, new = [], {}
    found = papers(rng, length)
    numbers = rng.sample(range(1, 400), len(found))
    for paper, number in zip(found, numbers, strict=True):
        if scheme == "date_first":
            old = f"{paper.name} {paper.day.day}.{paper.day.month}.{paper.day.year}"
            fresh = f"{paper.day.isoformat()}_{paper.name}"
        elif scheme == "plain":
            old = f"{paper.name.capitalize()} {rng.choice(('Final', 'For Review', 'Copy'))}-{paper.kind.upper()}"
            fresh = old.lower().replace(" ", "_").replace("-", "_")
        else:
            old, fresh = f"scan{number}", f"scan_{number:04d}"
        files.append(spec(f"{folder}/{old}.{paper.extension}", paper.content))
        new[f"{folder}/{old}.{paper.extension}"] = f"{folder}/{fresh}.{paper.extension}"
    files.append(spec(f"{folder}/index", "\n".join(sorted(paper.kind for paper in found)) + "\n"))
    return _relocation(files, new, {"folder": folder, "scheme": scheme, "out": folder})


def extract(rng: random.Random, length: LengthClass) -> Chore:
    """Fields of the error lines of one or more logs, in order of time."""
    lines = log_lines(rng, length)
    folder = rng.choice(("logs", "var", "server", "dump/logs"))
    parts = {"short": 1, "medium": 2, "long": 3}[length]
    size = -(-len(lines) // parts)
    # As log rotation leaves them: the highest number is the oldest.
    names = [f"{folder}/app.log" + (f".{n}" if n else "") for n in range(parts)][::-1]
    files = [spec(n, "".join(f"{e.text}\n" for e in lines[i * size : (i + 1) * size])) for i, n in enumerate(names)]
    columns = rng.choice((["time", "user", "job"], ["job", "service", "code"], ["time", "service", "user", "code"]))
    level = rng.choice(("ERROR", "WARN"))
    rows: list[list[object]] = []
    for line in lines:
        if line.level == level:
            cells = {"time": line.moment.strftime("%H:%M:%S"), "user": line.user, "job": line.job}
            rows.append([{**cells, "service": line.service, "code": line.code}[column] for column in columns])
    output = rng.choice(("csv", "json"))
    out = rng.choice(("errors", "incidents", "report/lines", "extract")) + f".{output}"
    about = {"path": out, "format": output, "columns": columns}
    points: dict[str, Check] = {
        "columns": {**about, "check": "columns"},
        "rows": {**about, "check": "rows", "rows": rows},
        "logs_unchanged": _unchanged(files),
    }
    values: dict[str, object] = {"folder": folder, "level": level, "parts": parts, "logs": names}
    values |= {"output": output, "out": out, "columns": columns, "count": len(rows)}
    return Chore(files, points, ["logs_unchanged"], values, ["\n".join(",".join(map(str, row)) for row in rows)])


def report(rng: random.Random, length: LengthClass) -> Chore:
    """Files and bytes by extension, or by month in the name."""
    by = rng.choice(("extension", "month"))
    folder = _folder(rng)
    files = _nested(rng, folder, papers(rng, length))
    if by == "month":
        days = {file.path: f"2024-{rng.randint(1, 9):02d}-{rng.randint(1, 28):02d}" for file in files}
        files = [spec(_dated(file.path, days[file.path]), file.content) for file in files]
    groups: dict[str, list[int]] = {}
    for file in files:
        name = file.path.rpartition("/")[2]
        key = name.rpartition(".")[2] if by == "extension" else name[:7]
        groups.setdefault(key, []).append(len(file.content.encode()))
    rows: list[list[object]] = [[key, len(sizes), sum(sizes)] for key, sizes in sorted(groups.items())]
    output = rng.choice(("csv", "json"))
    out = rng.choice(("report", "summary", "result/usage", "counts")) + f".{output}"
    columns = [by, "files", "bytes"]
    about = {"path": out, "format": output, "columns": columns}
    points: dict[str, Check] = {
        "columns": {**about, "check": "columns"},
        "rows": {**about, "check": "rows", "rows": rows},
        "files_unchanged": _unchanged(files),
    }
    values: dict[str, object] = {"folder": folder, "by": by, "output": output, "out": out, "columns": columns}
    answer = [",".join(map(str, row)) for row in rows]
    return Chore(files, points, ["files_unchanged"], {**values, "count": len(rows)}, answer)


def _dated(path: str, day: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/{day}_{name}"


KINDS: dict[str, Callable[[random.Random, LengthClass], Chore]] = {
    "find_text": find_text,
    "sort_folders": sort_folders,
    "rename": rename,
    "extract": extract,
    "report": report,
}
