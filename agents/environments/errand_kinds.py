"""What each kind of `errands` and `lookups` asks for: files, checks, one reference action. No instructions here.

Every value comes from a pool with a train side and an eval side that share nothing; what a task looks like
(its `Structure`) is drawn from keys of which a fixed share is reserved for evaluation. Called by `errands`.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from agents.environments.common import bash, write_file
from agents.environments.errand_pools import POOLS, Pool
from schemas.ids import derive_seed
from schemas.task import Action, FileSpec

Split = Literal["train", "eval"]
Check = dict[str, object]
EXTENSIONS = {"txt": ("txt", "text"), "md": ("md", "rst"), "log": ("log", "lst")}
FORMS = ("plain", "number", "punctuation")
STRUCTURE_SHARE = 0.3
"""Share of a kind's structures that only evaluation sees."""


@dataclass(frozen=True)
class Structure:
    """Depths in folders (None: the kind has no such path), class of the extension, form of the text or new name."""

    file_depth: int | None
    target_depth: int | None
    extension: str | None
    form: str

    @property
    def key(self) -> str:
        """One string; `-` stands for None."""
        parts = (self.file_depth, self.target_depth, self.extension, self.form)
        return "|".join("-" if part is None else str(part) for part in parts)


@dataclass
class Draw:
    """Draws the values of one task from one side of the pools, none of them twice; `used` keeps them in order."""

    rng: random.Random
    split: Split
    structure: Structure
    used: list[str] = field(default_factory=list)
    files: dict[str, list[str]] = field(default_factory=dict)

    def take(self, pool: Pool) -> str:
        """A value that this task does not have yet."""
        free = [value for value in POOLS[pool][self.split] if value not in self.used]
        self.used.append(self.rng.choice(free))
        return self.used[-1]

    def folder(self, depth: int | None) -> str:
        """A path of `depth` folders that ends with a slash; empty for 0."""
        return "".join(f"{self.take('folders')}/" for _ in range(depth or 0))

    def name(self, form: str = "plain") -> str:
        """A name without extension, of this form."""
        stem = self.take("stems")
        if form == "number":
            return f"{stem}_{self.rng.randint(2, 99)}"
        return f"{stem}-{self.take('stems')}" if form == "punctuation" else stem

    def path(self, folder: str, form: str = "plain") -> str:
        """A path in this folder, its extension of the structure's class."""
        extension = self.rng.choice(EXTENSIONS[self.structure.extension or "txt"])
        return f"{folder}{self.name(form)}.{extension}"

    def text(self) -> str:
        """A line of text of the structure's form."""
        phrase, rng = self.take("texts"), self.rng
        number = rng.randint(2, 60)
        if self.structure.form == "number":
            ends = (f"before {number}", f"in {number} days", f"for room {number}", f"at {number % 12 + 1} and {number}")
            return f"{phrase} {rng.choice(ends)}"
        if self.structure.form == "punctuation":
            shapes = (f"{phrase}!", f"note: {phrase}", f"{phrase}, please", f"({phrase})", f"{phrase}; then rest")
            return rng.choice(shapes)
        return phrase

    def lines(self, low: int = 4, high: int = 7) -> list[str]:
        """Made-up lines that begin with distinct words."""
        return [self._line(self.take("words")) for _ in range(self.rng.randint(low, high))]

    def _line(self, first: str) -> str:
        return f"{first} {self.rng.randint(2, 99) if self.rng.random() < 0.5 else self.take('words')}"

    def put(self, path: str, lines: Sequence[str] | None = None) -> str:
        """Adds a file; returns its path."""
        self.files[path] = list(lines or self.lines())
        return path

    def fill(self, folder: str = "", least: int = 3) -> None:
        """Adds files that must not change: one in `folder` if that is given, then up to `least` to 6 in all."""
        if folder and not any(path.startswith(folder) for path in self.files):
            self.put(self.path(folder), self.lines(2, 3))
        wanted = self.rng.randint(max(least, len(self.files)), max(6, len(self.files)))
        while len(self.files) < wanted:
            self.put(self.path(self.folder(self.rng.randint(0, 1))), self.lines(2, 3))


@dataclass(frozen=True)
class Errand:
    """The template variables, what must hold afterwards, the files that may change, and the one action."""

    values: dict[str, object]
    points: dict[str, Check]
    changed: tuple[str, ...]
    action: Action


@dataclass(frozen=True)
class Kind:
    """How a kind is made and the depths it has."""

    make: Callable[[Draw], Errand]
    files: tuple[int | None, ...] = (0, 1, 2)
    targets: tuple[int | None, ...] = (None,)
    extensions: tuple[str | None, ...] = tuple(EXTENSIONS)

    def structures(self, name: str, split: Split) -> list[Structure]:
        """Structures of one side, in order of a hash: the first 30 % are for evaluation."""
        every = [Structure(*parts) for parts in product(self.files, self.targets, self.extensions, FORMS)]
        every.sort(key=lambda structure: derive_seed("structure", name, structure.key))
        cut = round(STRUCTURE_SHARE * len(every))
        return every[:cut] if split == "eval" else every[cut:]


def digest(lines: Sequence[str]) -> str:
    """sha256 of a file of these lines."""
    return hashlib.sha256(content(lines).encode()).hexdigest()


def content(lines: Sequence[str]) -> str:
    """The text of a file of these lines."""
    return "".join(f"{line}\n" for line in lines)


def specs(draw: Draw) -> list[FileSpec]:
    """The workspace."""
    return [FileSpec(path=path, content=content(lines)) for path, lines in draw.files.items()]


def _has(path: str, lines: Sequence[str]) -> dict[str, Check]:
    return {"result": {"check": "lines", "path": path, "lines": list(lines)}}


def _source(draw: Draw, form: str = "plain") -> str:
    return draw.put(draw.path(draw.folder(draw.structure.file_depth), form))


def _target(draw: Draw) -> str:
    folder = draw.folder(draw.structure.target_depth)
    path = draw.path(folder, draw.structure.form)
    draw.fill(folder)
    return path


def _note(draw: Draw) -> Errand:
    folder = draw.folder(draw.structure.file_depth)
    file, text = draw.path(folder), draw.text()
    draw.fill(folder)
    return Errand({"file": file, "text": text}, _has(file, [text]), (), write_file(file, f"{text}\n"))


def _append(draw: Draw) -> Errand:
    file, text = _source(draw), draw.text()
    draw.fill()
    points = _has(file, [*draw.files[file], text])
    return Errand({"file": file, "text": text}, points, (file,), bash(f"echo '{text}' >> {file}"))


def _moved(draw: Draw, file: str, target: str) -> dict[str, Check]:
    return {
        "new_place": {"check": "present", "files": {target: digest(draw.files[file])}},
        "old_place": {"check": "absent", "paths": [file]},
    }


def _rename(draw: Draw) -> Errand:
    file = _source(draw)
    folder, _, name = file.rpartition("/")
    new = f"{draw.name(draw.structure.form)}.{name.rpartition('.')[2]}"
    target = f"{folder}/{new}" if folder else new
    draw.fill()
    return Errand({"file": file, "target": target}, _moved(draw, file, target), (file,), bash(f"mv {file} {target}"))


def _move(draw: Draw) -> Errand:
    file = _source(draw, draw.structure.form)
    folder = draw.folder(draw.structure.target_depth)
    draw.fill(folder)
    points = _moved(draw, file, folder + file.rpartition("/")[2])
    return Errand({"file": file, "folder": folder.rstrip("/")}, points, (file,), bash(f"mv {file} {folder}"))


def _copy(draw: Draw) -> Errand:
    file = _source(draw)
    target = _target(draw)
    points: dict[str, Check] = {"copy": {"check": "present", "files": {target: digest(draw.files[file])}}}
    return Errand({"file": file, "target": target}, points, (), bash(f"cp {file} {target}"))


def _remove(draw: Draw) -> Errand:
    file = _source(draw, draw.structure.form)
    draw.fill()
    return Errand({"file": file}, {"gone": {"check": "absent", "paths": [file]}}, (file,), bash(f"rm {file}"))


def _folder(draw: Draw) -> Errand:
    parent = draw.folder(draw.structure.target_depth)
    name = draw.take("folders")
    if draw.structure.form != "plain":
        name += f"_{draw.rng.randint(2, 99)}" if draw.structure.form == "number" else f"-{draw.take('folders')}"
    folder = parent + name
    draw.fill()
    return Errand({"folder": folder}, {"made": {"check": "folders", "paths": [folder]}}, (), bash(f"mkdir -p {folder}"))


def _with_word(draw: Draw) -> tuple[str, str]:
    """A file, named as the structure says, some lines of which hold the returned word."""
    file, word = _source(draw, draw.structure.form), draw.take("words")
    lines = draw.files[file]
    for place in draw.rng.sample(range(len(lines)), draw.rng.randint(1, 2)):
        lines[place] += f" {word}"
    return file, word


def _replace(draw: Draw) -> Errand:
    (file, old), new = _with_word(draw), draw.take("words")
    draw.fill()
    points = _has(file, [line.replace(old, new) for line in draw.files[file]])
    values: dict[str, object] = {"file": file, "old": old, "new": new}
    return Errand(values, points, (file,), bash(f"sed -i 's/{old}/{new}/g' {file}"))


def _drop(draw: Draw) -> Errand:
    file, old = _with_word(draw)
    draw.fill()
    points = _has(file, [line for line in draw.files[file] if old not in line])
    return Errand({"file": file, "old": old}, points, (file,), bash(f"sed -i '/{old}/d' {file}"))


def _head(draw: Draw) -> Errand:
    file = _source(draw)
    target, n = _target(draw), draw.rng.randint(2, len(draw.files[file]) - 1)
    values: dict[str, object] = {"file": file, "n": n, "target": target}
    return Errand(values, _has(target, draw.files[file][:n]), (), bash(f"head -n {n} {file} > {target}"))


def _sort(draw: Draw) -> Errand:
    file = _source(draw)
    lines = draw.files[file]
    if lines == sorted(lines):
        lines.reverse()
    target = _target(draw)
    return Errand({"file": file, "target": target}, _has(target, sorted(lines)), (), bash(f"sort {file} > {target}"))


def _join(draw: Draw) -> Errand:
    file = _source(draw)
    folder, slash, _ = file.rpartition("/")
    other = draw.put(draw.path(folder + slash))
    target = _target(draw)
    points = _has(target, draw.files[file] + draw.files[other])
    values: dict[str, object] = {"file": file, "other": other, "target": target}
    return Errand(values, points, (), bash(f"cat {file} {other} > {target}"))


def _count(draw: Draw) -> Errand:
    file = _source(draw)
    target = _target(draw)
    points = _has(target, [str(len(draw.files[file]))])
    return Errand({"file": file, "target": target}, points, (), bash(f"wc -l < {file} > {target}"))


def _last(draw: Draw) -> Errand:
    file = _source(draw)
    target = _target(draw)
    points = _has(target, draw.files[file][-1:])
    return Errand({"file": file, "target": target}, points, (), bash(f"tail -n 1 {file} > {target}"))


def _matching(draw: Draw) -> Errand:
    file, word = _with_word(draw)
    target = _target(draw)
    points = _has(target, [line for line in draw.files[file] if word in line])
    values: dict[str, object] = {"file": file, "word": word, "target": target}
    return Errand(values, points, (), bash(f"grep {word} {file} > {target}"))


def _names(draw: Draw) -> Errand:
    folder = draw.folder(draw.structure.file_depth)
    for _ in range(draw.rng.randint(2, 4)):
        draw.put(draw.path(folder), draw.lines(2, 3))
    names = sorted(path.rpartition("/")[2] for path in draw.files)
    target = _target(draw)
    values: dict[str, object] = {"folder": folder.rstrip("/"), "target": target}
    return Errand(values, _has(target, names), (), bash(f"ls {folder.rstrip('/')} > {target}"))


_TO_TARGET: tuple[int | None, ...] = (0, 1, 2)
ERRANDS: dict[str, Kind] = {
    "note": Kind(_note),
    "append": Kind(_append),
    "rename": Kind(_rename),
    "move": Kind(_move, targets=(1, 2)),
    "copy": Kind(_copy, targets=_TO_TARGET),
    "remove": Kind(_remove),
    "folder": Kind(_folder, files=(None,), targets=_TO_TARGET, extensions=(None,)),
    "replace": Kind(_replace),
    "head": Kind(_head, targets=_TO_TARGET),
    "sort": Kind(_sort, targets=_TO_TARGET),
    "drop": Kind(_drop),
    "join": Kind(_join, targets=_TO_TARGET),
}
LOOKUPS: dict[str, Kind] = {
    "count": Kind(_count, targets=_TO_TARGET),
    "last": Kind(_last, targets=_TO_TARGET),
    "matching": Kind(_matching, targets=_TO_TARGET),
    "names": Kind(_names, files=(1, 2), targets=_TO_TARGET),
}
