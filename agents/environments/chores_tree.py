"""Folders of small office files and log files, synthetic. For `file_chores`."""

import random
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from prompts import render
from schemas.pattern_views import LengthClass
from schemas.task import FileSpec

TYPES = ("invoice", "memo", "contract", "order", "minutes")
EXTENSIONS = ("txt", "md", "csv", "eml", "log")
_STEMS = (
    "budget",
    "offer",
    "summary",
    "visit",
    "survey",
    "plan",
    "review",
    "agenda",
    "draft",
    "claim",
    "quote",
    "notes",
)
_FILES: dict[LengthClass, tuple[int, int]] = {"short": (8, 12), "medium": (16, 26), "long": (34, 52)}
_LINES: dict[LengthClass, tuple[int, int]] = {"short": (20, 30), "medium": (50, 80), "long": (120, 200)}
_SERVICES = ("mailer", "billing", "search", "gateway", "importer")
_USERS = ("ana", "ben", "cleo", "dan", "eve", "finn")


@dataclass(frozen=True)
class Paper:
    """One file of an office folder. `name` has no extension and may hold spaces."""

    name: str
    extension: str
    kind: str
    day: date
    content: str


def papers(rng: random.Random, length: LengthClass, phrase: str = "") -> list[Paper]:
    """Files with distinct names and distinct contents; about a third contain `phrase`, in varying case."""
    count = rng.randint(*_FILES[length])
    numbers = rng.sample(range(100, 1000), count)
    start = date(rng.randint(2021, 2025), 1, 1)
    holders = set(rng.sample(range(count), max(3, count // 3))) if phrase else set()
    result = []
    for place, number in enumerate(numbers):
        kind = rng.choice(TYPES)
        day = start + timedelta(days=rng.randrange(300))
        inside = rng.choice((phrase, phrase.upper(), phrase.capitalize())) if place in holders else ""
        spelled = rng.choice((kind, kind.capitalize(), kind.upper()))
        about = {"type": spelled, "day": day.isoformat(), "number": number, "phrase": inside, "size": rng.randint(1, 4)}
        content = render("environments/file_chores/files/paper", variant=rng.randrange(4), **about).strip() + "\n"
        result.append(Paper(f"{rng.choice(_STEMS)}{number}", rng.choice(EXTENSIONS), kind, day, content))
    return result


def spec(path: str, content: str) -> FileSpec:
    """A text file."""
    return FileSpec(path=path, content=content)


@dataclass(frozen=True)
class LogLine:
    """One line of a log."""

    moment: datetime
    level: str
    service: str
    job: int
    user: str
    code: int

    @property
    def text(self) -> str:
        """As it stands in the file."""
        stamp = self.moment.strftime("%Y-%m-%d %H:%M:%S")
        fields = f"{stamp} [{self.level}] {self.service} job={self.job} user={self.user} code={self.code}"
        return f'{fields} msg="{"done" if self.code < 400 else "failed, will retry"}"'


def log_lines(rng: random.Random, length: LengthClass) -> list[LogLine]:
    """Lines in order of time, no two at the same second."""
    moment = datetime(rng.randint(2022, 2025), rng.randint(1, 12), rng.randint(1, 28), rng.randint(0, 20), 0, 0)
    result = []
    for job in rng.sample(range(10000, 99999), rng.randint(*_LINES[length])):
        moment += timedelta(seconds=rng.randint(1, 240))
        level = rng.choice(("INFO", "INFO", "INFO", "WARN", "ERROR", "DEBUG"))
        code = rng.choice((500, 502, 504)) if level == "ERROR" else rng.choice((200, 201, 304))
        result.append(LogLine(moment, level, rng.choice(_SERVICES), job, rng.choice(_USERS), code))
    return result
