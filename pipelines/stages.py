"""Runs the stages of a run folder in order, or one of them alone. The command line calls this.

What is done is skipped. Beam is imported only when a stage really runs.
"""

import importlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pipelines.folder import OUTPUT, READS, STAGES, RunFolder, finishing, open_or_create, other_version
from pipelines.progress import Progress
from schemas.errors import ConfigError, InputError, StageError
from schemas.recipe import RunConfig


def logs_for(root: Path, out: Path) -> list[Path]:
    """The log files below `root`, for a run in `out`.

    Raises InputError when there are none, ConfigError when the run folder would lie among them.
    """
    from pipelines.readers import input_files

    if out.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"{out}: the run folder must not lie inside the logs that it reads")
    inputs = input_files(root)
    if not inputs:
        raise InputError(f"{root}: no files in it")
    return inputs


def open_for(root: Path, out: Path, config: RunConfig, progress: Progress) -> RunFolder:
    """The run folder `out` for the logs below `root`; says so when another version wrote it. Raises as `logs_for`."""
    run = RunFolder(out)
    if (out / "run.json").exists() and (changed := other_version(run)):
        progress.say(
            f"{out} was written by another version ({changed}): every stage runs again, all episodes included; the old "
            f"ones stay in {run.journal}"
        )
    return open_or_create(out, config, logs_for(root, out), root)


def run_all(run: RunFolder, progress: Progress, beam_options: Sequence[str] = ()) -> None:
    """Bring every stage up to date."""
    for stage in STAGES:
        if needed(run, stage):
            run_stage(run, stage, progress, beam_options)
        else:
            progress.say(f"{stage}: done before")


def needed(run: RunFolder, stage: str) -> bool:
    """Whether a stage must run now. A session store that was removed is made again only for new patterns."""
    if not run.is_done(stage):
        return True
    if run.has_output(stage):
        return False
    return stage != "ingest" or not (run.is_done("patterns") and run.has_output("patterns"))


def run_alone(run: RunFolder, stage: str, progress: Progress, beam_options: Sequence[str] = ()) -> None:
    """Run one stage whether it is done or not. A rollout that was done starts over; one that was not continues.

    Raises StageError when a stage before it is not done, or a table that it reads was removed.
    """
    for earlier in STAGES[: STAGES.index(stage)]:
        if not run.is_done(earlier):
            raise StageError(f"{stage}: stage `{earlier}` before it is not done in {run.path}; run `{earlier}` first")
    for name in READS[stage]:
        if not run.has_output(name):
            raise StageError(f"{stage}: {run.table(OUTPUT[name])} was removed; run `{name}` first")
    if stage == "rollout" and run.is_done(stage):
        run.unmark(stage)
        run.clear_journal()
    run_stage(run, stage, progress, beam_options)


def run_stage(run: RunFolder, stage: str, progress: Progress, beam_options: Sequence[str] = ()) -> None:
    """Run one stage and mark it done."""
    work = getattr(importlib.import_module(f"pipelines.transforms.{stage}"), f"run_{stage}")
    with finishing(run, stage):
        work(run, run.config(), progress, beam_options)
    if not run.has_output(stage):
        raise StageError(f"{stage}: wrote no table `{OUTPUT[stage]}`")


@contextmanager
def interruptible(path: Path) -> Iterator[None]:
    """Around work that may be stopped: Ctrl-C and SIGTERM end it with a word on how to continue, exit status 130."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        # Coroutines cut off on a worker's loop are no news now.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        message = f"\nstopped; what is finished is kept in {path}. Start the same command again to continue."
        print(message, file=sys.stderr, flush=True)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
