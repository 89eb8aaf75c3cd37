"""Adding up and releasing: order does not matter, and nothing below k or k' gets out."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pattern_sessions import session

from pipelines.patterns import Features, features, merge, release, support_hash
from schemas.errors import StageError
from schemas.ids import content_id
from schemas.pattern import UsagePattern
from schemas.recipe import PatternSettings

K = PatternSettings()
TOOLS = ["Read", "Edit", "Edit!", "Bash", "Bash!", "Grep", "Write"]


@st.composite
def parts(draw: st.DrawFn) -> list[Features]:
    rows = draw(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(TOOLS), min_size=1, max_size=9)),
            min_size=1,
            max_size=14,
        )
    )
    return [features(session(n, partner, *tools)) for n, (partner, tools) in enumerate(rows)]


@given(parts(), st.randoms(use_true_random=False))
def test_merge_is_associative_and_commutative(rows: list[Features], rng: random.Random) -> None:
    shuffled = rng.sample(rows, len(rows))
    cut = rng.randrange(len(rows) + 1)
    halves = [merge(half) for half in (shuffled[:cut], shuffled[cut:]) if half]
    assert merge(halves).to_json() == merge(rows).to_json()
    assert merge([merge(rows)]) == merge(rows)
    again = merge(Features.from_json(row.to_json()) for row in shuffled)
    assert release(again, K) == release(merge(rows), K)


@given(parts())
def test_everything_released_has_k_sessions_and_k_partners(rows: list[Features]) -> None:
    merged = merge(rows)
    pattern = release(merged, K)

    def enough(cell: str) -> bool:
        """5 sessions, 2 partners, and 2 sessions of others for whoever has most."""
        having = Counter(partner for row in rows if cell in row.cells for partner in row.cells[cell])
        return having.total() >= 5 and len(having) >= 2 and having.total() - max(having.values()) >= 2

    assert (pattern is not None) == enough("all")
    if pattern is None:
        return
    cells = [f"call:{c.category}" for c in pattern.categories] + [
        f"step:{t.source}>{t.target}" for t in pattern.transitions
    ]
    assert set(cells) == {cell for cell in merged.cells if cell.startswith(("call:", "step:")) and enough(cell)}
    for histogram in (pattern.turns, pattern.calls, pattern.tokens, pattern.errors, pattern.recoveries):
        assert sum(bucket.count for bucket in histogram) == pattern.sessions == len(rows)
        assert all(bucket.count >= 5 for bucket in histogram)
        lows = [bucket.low for bucket in histogram]
        assert lows == sorted(set(lows))


def released(rows: list[Features]) -> UsagePattern:
    pattern = release(merge(rows), K)
    assert pattern is not None
    return pattern


def test_what_one_partner_alone_does_stays_inside() -> None:
    common = [features(session(n, "ab"[n % 2], "Read", "Edit")) for n in range(6)]
    own = [features(session(10 + n, "a", "Read", "Edit", "WebSearch", "Read")) for n in range(6)]
    pattern = released(common + own)
    assert [c.category for c in pattern.categories] == ["edit_file", "read_file"]
    assert [(t.source, t.target, t.count) for t in pattern.transitions] == [("read_file", "edit_file", 12)]
    assert pattern.sessions == 12 and pattern.partners == 2


def test_a_lone_outlier_joins_the_next_group() -> None:
    rows = [features(session(n, "ab"[n % 2], "Read")) for n in range(10)]
    rows.append(features(session(99, "a", *["Read"] * 200)))
    assert [(b.low, b.count) for b in released(rows).calls] == [(16, 11)]
    assert all(b.low < 128 for b in released(rows).calls)


def test_groups_split_where_each_has_support() -> None:
    rows = [features(session(n, "ab"[n % 2], "Read")) for n in range(6)]
    rows += [features(session(10 + n, "ab"[n % 2], *["Read"] * 9)) for n in range(6)]
    assert [(b.low, b.count) for b in released(rows).calls] == [(1, 6), (8, 6)]


def test_settings_decide() -> None:
    rows = [features(session(n, "a", "Read")) for n in range(3)]
    assert release(merge(rows), K) is None
    assert release(merge(rows), PatternSettings(min_sessions=3, min_partners=1)) is not None
    assert release(merge(rows), PatternSettings(min_sessions=3, min_partners=2)) is None


def test_a_partner_cannot_subtract_itself_down_to_one_session() -> None:
    rows = [features(session(n, "a", "Read")) for n in range(20)] + [features(session(50, "b", "Read"))]
    assert release(merge(rows), K) is None
    rows.append(features(session(51, "c", "Read")))
    assert release(merge(rows), K) is not None


def test_the_pattern_says_nothing_of_who() -> None:
    rows = [features(session(n, f"partner-{n % 3}", "Read", "Edit")) for n in range(6)]
    text = released(rows).model_dump_json()
    assert "session_" not in text and "partner-" not in text and content_id("partner", "partner-0") not in text
    ids = [f"session_{n}" for n in range(6)]
    assert released(rows).support_hash == support_hash(reversed(ids)) and merge(rows).sessions == tuple(ids)


def test_ids_follow_from_counts() -> None:
    rows = [features(session(n, "ab"[n % 2], "Read")) for n in range(6)]
    renamed = [features(session(100 + n, "ab"[n % 2], "Read")) for n in range(6)]
    assert released(rows).pattern_id == released(renamed).pattern_id
    assert released(rows).support_hash != released(renamed).support_hash
    assert released(rows).pattern_id != released(rows + renamed).pattern_id


def test_what_must_not_be_merged() -> None:
    one, other = (
        features(session(1, "a", "Read")),
        features(session(2, "a", "run_sql", ask="sum the rows of the table")),
    )
    for rows in ([], [one, other], [one, one]):
        with pytest.raises(StageError):
            merge(rows)
