"""Random structures and damaged real files: never a crash, never a hang, never a record lost in silence."""

import json
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_support import write

from pipelines.readers import READERS, detect, input_files, read_file
from pipelines.readers.parse import Value
from schemas.session import Reject, Session

KEYS = st.sampled_from(
    """messages traj role content tool_calls function name arguments id tool_call_id conversations from value type text
    input output response responses_create_params call_id message sessionId uuid parentUuid isSidechain tool_use_id
    loglines history trajectory action observation is_demo tool_call_ids resourceSpans scopeSpans spans traceId spanId
    attributes key stringValue gen_ai.input.messages llm.input_messages.0.message.role context trace_id span_id parts
    usage input_tokens timestamp reward tools summary reasoning thinking toolUseResult is_error startTimeUnixNano
    """.split()  # noqa: SIM905
)
WORDS = st.sampled_from(
    """user assistant system tool human gpt function_call observation message text tool_use tool_result thinking
    reasoning function_call_output summary t1 2026-01-01T00:00:00Z 12 {} [] {'a':1} <function=f> ghost
    """.split()  # noqa: SIM905
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=15,
)
MESSAGE = st.fixed_dictionaries(
    {"role": WORDS | ANYTHING, "content": WORDS | ANYTHING},
    optional={"tool_calls": st.lists(ANYTHING, max_size=2) | ANYTHING, "tool_call_id": WORDS | ANYTHING},
)
RECORD = st.one_of(
    ANYTHING,
    st.fixed_dictionaries({"messages": st.lists(MESSAGE | ANYTHING, min_size=1, max_size=4)}),
    st.fixed_dictionaries({"conversations": st.lists(st.fixed_dictionaries({"from": WORDS, "value": ANYTHING}))}),
    st.fixed_dictionaries({"type": WORDS, "sessionId": WORDS | ANYTHING, "message": MESSAGE | ANYTHING}),
    st.fixed_dictionaries({"input": ANYTHING, "output": st.lists(ANYTHING), "object": st.just("response")}),
    st.fixed_dictionaries({"history": st.lists(MESSAGE | ANYTHING), "trajectory": st.lists(ANYTHING)}),
    st.fixed_dictionaries({"traceId": st.just("t"), "spanId": WORDS, "name": WORDS, "attributes": ANYTHING}),
)


@given(st.lists(RECORD, max_size=5))
def test_every_reader_takes_any_structure(records):
    values = [Value(record, f"line {i + 1}", i + 1, i) for i, record in enumerate(records)]
    for reader in READERS:
        for record in records:
            assert reader.matches(record) in (True, False)
        list(reader.read(iter(values)))


@given(st.lists(RECORD, min_size=1, max_size=6))
def test_no_line_is_lost(tmp_path_factory, records):
    folder = tmp_path_factory.mktemp("fuzz")
    path = write(folder, records)
    rows = list(read_file(path, root=folder, partner="acme"))
    assert rows
    json.dumps([row.model_dump(mode="json") for row in rows]).encode()
    name = detect(path)
    if name is None:
        assert [row.reason for row in rows] == ["unknown_format"]
    elif name in ("openai_responses", "swe_agent", "sharegpt"):
        assert len(rows) == len(records)
        assert [r.line if isinstance(r, Reject) else int(r.position.removeprefix("line ")) for r in rows] == [
            i + 1 for i in range(len(records))
        ]


DAMAGE = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "delete"]),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(
        [b'"', b"{", b"}", b"[", b"]", b"\n", b"\\", b"\0", b"\xff", b",", b'{"a":', b"\\ud800", b"9" * 5000]
    ),
)


def damaged(data: bytes, changes) -> bytes:
    for kind, where, piece in changes:
        at = int(where * len(data))
        if kind == "flip":
            data = data[:at] + bytes([data[at] ^ (1 << len(piece) % 8)]) + data[at + 1 :] if data else data
        elif kind == "cut":
            data = data[:at]
        elif kind == "insert":
            data = data[:at] + piece + data[at:]
        else:
            data = data[:at] + data[at + 50 :]
    return data


def test_damaged_real_files(usage, tmp_path):
    files = [path for path in input_files(usage) if detect(path) and path.stat().st_size < 200_000]

    @settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(files), st.lists(DAMAGE, min_size=1, max_size=4))
    def check(path, changes):
        original = path.read_bytes()
        start = time.monotonic()
        rows = list(read_file(write(tmp_path, damaged(original, changes)), root=tmp_path, partner="acme"))
        assert rows
        assert time.monotonic() - start < 20
        ids = [r.session_id if isinstance(r, Session) else r.reject_id for r in rows]
        assert len(ids) == len(set(ids))

    check()


def test_one_bad_byte_costs_one_record_at_most(usage, tmp_path):
    """In JSONL with a record per line, a byte that breaks a line leaves all the others."""
    path = usage / "nemo_gym_rollouts" / "legal_agent_bench__example_rollouts.jsonl"
    data = path.read_bytes()
    whole = [row.messages for row in read_file(path, root=usage, partner="acme")]

    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.integers(0, len(data) - 1), st.sampled_from(b'"{}[],:\\x\0'))
    def check(at, byte):
        if data[at : at + 1] == b"\n":
            return
        changed = data[:at] + bytes([byte]) + data[at + 1 :]
        rows = list(read_file(write(tmp_path, changed), root=tmp_path, partner="acme"))
        line = data[:at].count(b"\n")
        kept = [row.messages for row in rows if isinstance(row, Session)]
        others = whole[:line] + whole[line + 1 :]
        assert [messages for messages in kept if messages in others] == others
        assert len(rows) >= len(whole)

    check()
