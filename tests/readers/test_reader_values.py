"""Damage in files: every record is read or rejected in its place, and memory stays flat."""

import json
import tracemalloc

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reader_support import read, write

from pipelines.readers import detect, read_file, scan
from pipelines.readers.parse import Problem, Value
from pipelines.readers.values import read_head, read_values
from schemas.session import Session

CHAT = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
LINE = json.dumps(CHAT).encode()


def places(rejects):
    return [(r.reason, r.line, r.byte_offset) for r in rejects]


def test_cut_line_costs_itself_alone(tmp_path):
    sessions, rejects = read(tmp_path, b"\n".join([LINE, LINE[:40], LINE, b"", LINE]))
    assert [s.position for s in sessions] == ["line 1", "line 3", "line 5"]
    assert places(rejects) == [("bad_json", 2, len(LINE) + 1)]


def test_two_records_on_one_line_are_both_read(tmp_path):
    sessions, rejects = read(tmp_path, LINE + LINE + b"\n" + LINE)
    assert [s.position for s in sessions] == ["line 1", f"byte {len(LINE)}", "line 2"]
    assert rejects == []
    assert len({s.session_id for s in sessions}) == 3


def test_cut_record_followed_by_the_whole_one_on_the_same_line(tmp_path):
    sessions, rejects = read(tmp_path, LINE + b"\n" + LINE[:50] + LINE + b"\n")
    assert [s.position for s in sessions] == ["line 1", f"byte {len(LINE) + 51}"]
    assert places(rejects) == [("bad_json", 2, len(LINE) + 1)]
    sessions, rejects = read(tmp_path, LINE[:50] + LINE + LINE + LINE[:30] + LINE)
    assert len(sessions) == 3
    assert [r.reason for r in rejects] == ["bad_json", "bad_json"]


def test_lines_that_are_no_records(tmp_path):
    sessions, rejects = read(tmp_path, LINE + b'\n[1]\n"text"\nnull\n17\n{"other": 1}\nnot json\n')
    assert len(sessions) == 1
    assert [r.line for r in rejects] == [2, 3, 4, 5, 6, 7]
    assert {r.reason for r in rejects} == {"unexpected_shape", "bad_json"}


def test_bom_nan_and_carriage_returns(tmp_path):
    record = b'{"reward": NaN, "messages": [{"role": "user", "content": "a"}]}'
    sessions, rejects = read(tmp_path, b"\xef\xbb\xbf" + LINE + b"\r\n" + record + b"\r\n")
    assert rejects == []
    assert [s.position for s in sessions] == ["line 1", "line 2"]
    assert sessions[1].reward is None


@pytest.mark.parametrize("foul", [b"\xff\xfe", b"\\ud800", b"\\u0000", b"\0", b"\x01"])
def test_foul_text_is_cleaned(tmp_path, foul):
    sessions, rejects = read(tmp_path, LINE.replace(b"hello", b"a" + foul + b"b"))
    assert rejects == []
    content = sessions[0].messages[0].content
    assert content.encode()  # no lone surrogate is left
    assert "\0" not in content
    assert content[0] == "a" and content[-1] == "b"


def test_nesting_beyond_every_parser_is_rejected(tmp_path):
    deep = b'{"messages": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    sessions, rejects = read(tmp_path, LINE + b"\n" + deep + b"\n" + LINE)
    assert len(sessions) == 2
    assert places(rejects) == [("too_deep", 2, len(LINE) + 1)]


def test_a_line_over_the_cap_is_rejected_and_the_rest_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "RECORD_CAP", 4096)
    big = LINE.replace(b"hello", b"x" * 10_000)
    sessions, rejects = read(tmp_path, LINE + b"\n" + big + b"\n" + LINE)
    assert [s.position for s in sessions] == ["line 1", "line 3"]
    assert places(rejects) == [("record_too_large", 2, len(LINE) + 1)]


@pytest.mark.parametrize("indent", [None, 2])
def test_array_damage_costs_one_element(tmp_path, indent):
    text = json.dumps([CHAT] * 5, indent=indent).encode()
    starts = [i for i in range(len(text)) if text.startswith(b'"messages"', i)]
    at = text.index(b'"hello"', starts[2])
    damaged = text[:at] + b"#" + text[at + 1 :]
    sessions, rejects = read(tmp_path, damaged)
    assert [s.position for s in sessions] == ["item 0", "item 1", "item 3", "item 4"]
    assert [r.reason for r in rejects] == ["bad_json"]
    assert starts[1] < rejects[0].byte_offset < starts[2]


def test_an_array_that_is_not_closed_says_so(tmp_path):
    text = json.dumps([CHAT] * 3).encode()
    sessions, rejects = read(tmp_path, text[:-1])
    assert len(sessions) == 3
    assert places(rejects) == [("truncated", None, len(text) - 1)]
    sessions, rejects = read(tmp_path, text[:-20])
    assert len(sessions) == 2
    assert [r.reason for r in rejects] == ["bad_json"]


def test_objects_written_one_after_the_other(tmp_path):
    sessions, rejects = read(tmp_path, (json.dumps(CHAT, indent=1) + "\n").encode() * 3)
    assert len(sessions) == 3
    assert rejects == []


@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
            max_leaves=12,
        ),
        max_size=12,
    ),
    st.sampled_from([None, 1, 4]),
)
def test_array_and_lines_give_back_what_was_written(tmp_path_factory, items, indent):
    folder = tmp_path_factory.mktemp("values")
    array = write(folder, json.dumps(items, indent=indent), "array")
    assert [v.value for v in read_values(array, "array") if isinstance(v, Value)] == items
    lines = write(folder, items, "lines")
    assert [v.value for v in read_values(lines, "lines") if isinstance(v, Value)] == items


@given(st.binary(max_size=300), st.sampled_from([b"", LINE + b"\n", b"[" + LINE + b",", b"{\n"]))
def test_any_bytes_are_read_without_a_crash(tmp_path_factory, data, prefix):
    path = write(tmp_path_factory.mktemp("values"), prefix + data)
    for layout in ("lines", "array", "document"):
        if layout != "array" or b"[" in data + prefix:
            found = list(read_values(path, layout))
            assert all(isinstance(f, Value | Problem) for f in found)
    assert list(read_file(path, root=path.parent, partner="acme"))


@pytest.mark.parametrize("layout", ["array", "lines"])
def test_memory_is_bounded_by_a_record_not_by_the_file(tmp_path, layout):
    record = orjson.dumps({"messages": [{"role": "user", "content": "x" * 20_000}] * 10})
    times = 50_000_000 // len(record)
    path = tmp_path / "big.json"
    with path.open("wb") as file:
        file.write(b"[" if layout == "array" else b"")
        for i in range(times):
            file.write((b",\n" if layout == "array" else b"\n") * (i > 0) + record)
        file.write(b"]" if layout == "array" else b"\n")
    assert path.stat().st_size > 49_000_000
    assert read_head(path).layout == layout
    assert detect(path) == "openai_chat"
    tracemalloc.start()
    sessions = sum(isinstance(row, Session) for row in read_file(path, root=tmp_path, partner="acme"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sessions == times
    assert peak < 12_000_000


def test_a_damaged_array_is_given_up_rather_than_scanned_for_hours(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "DAMAGE_CAP", 100_000)
    broken = b'{"messages": [{"role": "user", "content": "a}]},\n'
    sessions, rejects = read(tmp_path, b"[" + broken * 2000 + LINE + b"]")
    assert sessions == []
    assert 0 < len(rejects) < 20


def test_many_records_on_one_line_take_no_quadratic_time(tmp_path):
    record = b'{"role":"user","content":"a"}'
    path = write(tmp_path, record * 30_000 + b"x")
    found = list(read_values(path, "lines"))
    assert len(found) == 30_001
    assert found[-2].byte_offset == 29_999 * len(record)
    assert isinstance(found[-1], Problem)
