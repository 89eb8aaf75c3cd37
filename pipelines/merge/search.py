"""Search for the weights of a merge by what it can do on development tasks. Called by the loop, which does the merging.

Never give it a score on test tasks: the best of many tries is chosen, so its own score is no measurement.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pipelines.files import write_text
from schemas.errors import ConfigError, InputError
from schemas.posttrain import SearchSettings

Point = tuple[float, ...]
_DIGITS = 4


class _Spent(Exception):
    """All evaluations are used up."""


def search(
    score: Callable[[Point], float], start: Sequence[float], settings: SearchSettings, seed: int, journal: Path
) -> Point:
    """The weights with the highest score of at most `settings.evaluations`; the first of equals.

    What was scored stands in `journal`, a JSON line each, and is not scored again: a search that was stopped goes on.
    InputError for a line that does not fit, ConfigError when `cma` is asked for and `cmaes` is not installed.
    """
    known = _read(journal, len(start))
    scored: dict[Point, float] = {}

    def value(point: Point) -> float:
        point = tuple(round(x, _DIGITS) for x in point)
        if point not in scored:
            if len(scored) == settings.evaluations:
                raise _Spent
            if point not in known:
                known[point] = score(point)
                lines = (json.dumps({"weights": key, "score": found}) for key, found in known.items())
                write_text(journal, "".join(f"{line}\n" for line in lines))
            scored[point] = known[point]
        return scored[point]

    method = _coordinate if settings.optimizer == "coordinate" else _cma
    with suppress(_Spent):
        method(value, tuple(start), settings.step, seed)
    return max(scored, key=scored.__getitem__)


def _coordinate(value: Callable[[Point], float], start: Point, step: float, seed: int) -> None:
    """One weight at a time, up and down by `step`, moving to what is better; half the step when nothing is."""
    here, best = start, value(start)
    while step >= 10**-_DIGITS:
        moved = False
        for i in range(len(here)):
            for sign in (1, -1):
                there = (*here[:i], here[i] + sign * step, *here[i + 1 :])
                found = value(there)
                if found > best:
                    here, best, moved = tuple(there), found, True
                    break
        if not moved:
            step /= 2


def _cma(value: Callable[[Point], float], start: Point, step: float, seed: int) -> None:
    """CMA-ES, Hansen, arXiv:1604.00772."""
    try:
        import numpy as np
        from cmaes import CMA
    except ImportError as error:
        raise ConfigError(f"optimizer cma needs {error.name}; run: pip install 'trajmill[search]'") from error
    value(start)
    if len(start) < 2:
        raise ConfigError("optimizer cma needs two weights or more")
    optimizer = CMA(mean=np.array(start), sigma=step, seed=seed)
    while not optimizer.should_stop():
        asked = [optimizer.ask() for _ in range(optimizer.population_size)]
        optimizer.tell([(x, -value(tuple(map(float, x)))) for x in asked])


def _read(journal: Path, size: int) -> dict[Point, float]:
    return dict(_lines(journal, size)) if journal.exists() else {}


def _lines(journal: Path, size: int) -> Iterator[tuple[Point, float]]:
    for number, line in enumerate(journal.read_text("utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            point, score = tuple(map(float, entry["weights"])), float(entry["score"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{journal}:{number}: no weights and score: {error}") from error
        if len(point) != size or not math.isfinite(score):
            raise InputError(f"{journal}:{number}: {len(point)} weights of {size}, score {score}")
        yield point, score
