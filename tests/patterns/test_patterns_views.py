"""What environments read off a pattern."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.pattern import Bucket, CategoryCount, UsagePattern
from schemas.pattern_views import families_for, length_class, mean, median_low, slip_rate


def pattern(**changes: object) -> UsagePattern:
    one = [Bucket(low=0, count=5)]
    fields = {
        "pattern_id": "p",
        "domain": "software",
        "categories": [],
        "transitions": [],
        "turns": one,
        "calls": one,
        "tokens": one,
        "errors": one,
        "recoveries": one,
        "agents_together": False,
        "sessions": 5,
        "partners": 2,
        "support_hash": "",
    }
    return UsagePattern.model_validate(fields | changes)


def buckets(*pairs: tuple[int, int]) -> list[Bucket]:
    return [Bucket(low=low, count=count) for low, count in pairs]


def test_mean_takes_the_middle_of_a_bucket() -> None:
    assert mean(buckets((0, 1), (1, 1), (2, 1), (4, 1))) == (0 + 1 + 2.5 + 5.5) / 4
    assert mean([]) == 0.0 and median_low([]) == 0


def test_rates() -> None:
    busy = pattern(calls=buckets((8, 10)), errors=buckets((1, 10)), recoveries=buckets((0, 5), (1, 5)))
    assert slip_rate(busy) == round(1 / 11.5, 4)
    assert slip_rate(pattern()) == 0.0
    assert slip_rate(pattern(calls=buckets((1, 5)), errors=buckets((8, 5)))) == 0.5


@pytest.mark.parametrize(("low", "length"), [(0, "short"), (2, "short"), (4, "medium"), (8, "long"), (64, "long")])
def test_length_class(low: int, length: str) -> None:
    assert length_class(pattern(calls=buckets((low, 6)))) == length


def test_the_median_decides_the_length() -> None:
    assert length_class(pattern(calls=buckets((2, 5), (4, 6), (32, 5)))) == "medium"


def test_tools_shift_the_families() -> None:
    plain = families_for(pattern(domain="software"))
    searching = families_for(pattern(domain="software", categories=[CategoryCount(category="search", count=9)]))
    assert searching["file_chores"] > plain["file_chores"] and searching["code_repair"] < plain["code_repair"]
    assert families_for(pattern(domain="office")) == {"file_chores": 0.85, "table_work": 0.15}


@given(
    st.sampled_from(["data_analysis", "software", "customer_support", "operations", "research", "office", "other"]),
    st.dictionaries(st.sampled_from(["database", "run_code", "edit_file", "search", "shell"]), st.integers(1, 99)),
)
def test_weights_are_a_distribution(domain: str, counts: dict[str, int]) -> None:
    categories = [CategoryCount.model_validate({"category": c, "count": n}) for c, n in counts.items()]
    weights = families_for(pattern(domain=domain, categories=categories))
    assert set(weights) <= {"table_work", "code_repair", "file_chores"}
    assert all(w > 0 for w in weights.values()) and abs(sum(weights.values()) - 1) < 1e-5
