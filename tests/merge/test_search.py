"""Search for weights: it finds the top, keeps to its budget, and goes on from its journal without scoring twice."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.merge.search import Point, search
from schemas.errors import InputError
from schemas.posttrain import SearchSettings

WEIGHTS = st.floats(min_value=-1, max_value=2)


def hill(top: tuple[float, ...], scored: list[Point]) -> Callable[[Point], float]:
    def score(point: Point) -> float:
        scored.append(point)
        return -sum((x - t) ** 2 for x, t in zip(point, top, strict=True))

    return score


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(top=st.lists(WEIGHTS, min_size=1, max_size=3), budget=st.integers(1, 60))
def test_coordinate_search(top: list[float], budget: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    journal = tmp_path_factory.mktemp("search") / "search.jsonl"
    asked, scored = SearchSettings(evaluations=budget), list[Point]()
    score = hill(tuple(top), scored)
    best = search(score, [0.5] * len(top), asked, 0, journal)
    assert len(scored) == len(set(scored)) <= budget
    assert max(scored, key=hill(tuple(top), [])) == best
    if budget == 60:
        assert all(abs(x - t) < 0.1 for x, t in zip(best, top, strict=True))


@pytest.mark.parametrize("optimizer", ["coordinate", "cma"])
def test_it_goes_on_where_it_was_stopped(optimizer: str, tmp_path: Path) -> None:
    asked = SearchSettings.model_validate({"evaluations": 14, "optimizer": optimizer})
    whole, journal = list[Point](), tmp_path / "whole.jsonl"
    best = search(hill((0.9, 0.2), whole), [0.5, 0.5], asked, 3, journal)
    assert len(whole) == 14 and sum((a - b) ** 2 for a, b in zip(best, (0.9, 0.2), strict=True)) < 0.1
    stopped, rest = tmp_path / "stopped.jsonl", list[Point]()
    stopped.write_text("".join(journal.read_text().splitlines(keepends=True)[:5]))
    assert search(hill((0.9, 0.2), rest), [0.5, 0.5], asked, 3, stopped) == best
    assert (rest, stopped.read_text()) == (whole[5:], journal.read_text())


def test_a_score_that_fails_loses_nothing(tmp_path: Path) -> None:
    def broken(point: Point) -> float:
        if point != (0.5,):
            raise InputError("no")
        return 1.0

    with pytest.raises(InputError, match="no"):
        search(broken, [0.5], SearchSettings(), 0, tmp_path / "j.jsonl")
    assert (tmp_path / "j.jsonl").read_text() == '{"weights": [0.5], "score": 1.0}\n'


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "3", '{"weights": [1]}', '{"weights": [1], "score": 1}', '{"weights": ["a", 1], "score": 1}',
     '{"weights": [1, 2], "score": NaN}'],
)  # fmt: skip
def test_a_broken_journal_is_named(line: str, tmp_path: Path) -> None:
    journal = tmp_path / "search.jsonl"
    journal.write_text(line + "\n")
    with pytest.raises(InputError, match=r"search\.jsonl:1: "):
        search(lambda _: 0.0, [0.5, 0.5], SearchSettings(), 0, journal)
