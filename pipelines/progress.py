"""Shows how far long work is: a bar with rate and ETA on a terminal, a line every five seconds elsewhere.

The command line makes one `Progress` for all stages. Code in this process calls `Bar.advance`. Beam workers, which may
live elsewhere, append one byte per finished unit to a counter file with `tick`; a pipeline's `run()` blocks, so a
thread here reads the file's size.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

LINE_EVERY_S = 5.0
POLL_S = 0.25


def tick(counter: Path | str | None, n: int = 1) -> None:
    """Count `n` finished units in a counter file. Appends of a few bytes are atomic, so any worker may call it."""
    if counter is not None:
        with Path(counter).open("ab", buffering=0) as file:
            file.write(b"." * n)


def rate_and_eta(done: int, total: int | None, seconds: float, unit: str) -> str:
    """For example `12.5 episodes/s, ETA 0:41`."""
    if not done or seconds <= 0:
        return ""
    rate = done / seconds
    text = f"{rate:.3g} {unit}/s" if unit else f"{rate:.3g}/s"
    if total and total > done:
        left = round((total - done) / rate)
        text += f", ETA {left // 60}:{left % 60:02d}"
    return text


class Bar:
    """One stage's progress. Thread-safe."""

    def __init__(self, name: str, total: int | None, unit: str, counter: Path | None) -> None:
        self.name, self.unit = name, unit
        self.text = ""
        self._total, self._own, self._before, self._counter = total, 0, 0, counter
        self._lock = threading.Lock()
        self._begin = time.monotonic()

    def advance(self, n: int = 1) -> None:
        """`n` more units are done."""
        with self._lock:
            self._own += n

    def note(self, text: str) -> None:
        """A short text shown beside the numbers."""
        self.text = text

    def skip(self, n: int) -> None:
        """`n` units were done by an earlier run: they count, but not in the rate."""
        self._before += n

    @property
    def done(self) -> int:
        """Units done so far, before, here and by workers."""
        counted = self._counter.stat().st_size if self._counter and self._counter.exists() else 0
        return self._before + self._own + counted

    def speed(self) -> str:
        """Rate and ETA of this run."""
        total = None if self._total is None else self._total - self._before
        return rate_and_eta(self.done - self._before, total, self.seconds, self.unit)

    @property
    def total(self) -> int | None:
        """Units to do in all; None while unknown."""
        return self._total

    @property
    def seconds(self) -> float:
        """Since the stage began."""
        return time.monotonic() - self._begin

    def line(self) -> str:
        """All of it on one line."""
        done, total = self.done, self.total
        share = f"{done}/{total}" if total is not None else str(done)
        parts = (f"{share} {self.unit}".strip(), self.speed(), self.text)
        return f"{self.name}: " + ", ".join(p for p in parts if p)


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        bar: Bar = task.fields["bar"]
        parts = (bar.speed(), bar.text)
        return Text(", ".join(p for p in parts if p), no_wrap=True, overflow="ellipsis")


class Progress:
    """Shows stages on standard error, one after the other. `quiet` shows nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.quiet = quiet

    def say(self, text: str) -> None:
        """Print a line between stages."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "", counter: Path | None = None) -> Iterator[Bar]:
        """Show one stage while the block runs. A counter file that is left over from before is emptied."""
        if counter is not None:
            counter.unlink(missing_ok=True)
        bar = Bar(name, total, unit, counter)
        try:
            with nullcontext() if self.quiet else self._shown(bar):
                yield bar
        finally:
            if counter is not None:
                counter.unlink(missing_ok=True)

    @contextmanager
    def _shown(self, bar: Bar) -> Iterator[None]:
        over = threading.Event()
        show = self._draw if self.console.is_terminal else self._print
        thread = threading.Thread(target=show, args=(bar, over), name=f"progress-{bar.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _print(self, bar: Bar, over: threading.Event) -> None:
        while not over.wait(LINE_EVERY_S):
            print(bar.line(), file=sys.stderr, flush=True)
        print(f"{bar.line()}, {bar.seconds:.1f} s", file=sys.stderr, flush=True)

    def _draw(self, bar: Bar, over: threading.Event) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            _Speed(),
        )
        with RichProgress(*columns, console=self.console) as shown:
            task = shown.add_task(bar.name, total=bar.total, bar=bar)
            while not over.wait(POLL_S):
                shown.update(task, completed=bar.done, total=bar.total)
            shown.update(task, completed=bar.done, total=bar.total)
