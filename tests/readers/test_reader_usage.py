"""The real public logs: counts against their MANIFEST, and nothing that crashes or vanishes."""

import csv
from functools import cache
from pathlib import Path

import pytest

from pipelines.readers import detect, input_files, partner_of, read_file
from schemas.session import Reject, Session

FORMATS = {
    "openai_chat_tau": "openai_chat",
    "openai_chat_sft": "openai_chat",
    "nemo_gym_rollouts": "openai_responses",
    "claude_code_jsonl": "claude_code",
    "claude_code_records": "claude_code",
    "swe_agent_traj": "swe_agent",
    "otel_agent_traces": "otel",
    "sharegpt_toolcall": "sharegpt",
}

# Files whose MANIFEST counts differ from ours, with (sessions, calls, rejects) as they are.
EXPLAINED = {
    # MANIFEST counts the example tags inside the two prompts of each record too: 3 x 2 more than the calls made.
    "openai_chat_sft/ft_xml_example.jsonl": (3, 103, 0),
    # One record each, of a kind that says nothing: no message, so no session.
    "claude_code_records/system__file_history_snapshot.jsonl": (0, 0, 1),
    "claude_code_records/system__summary.jsonl": (0, 0, 1),
    "claude_code_records/system__system_info.jsonl": (0, 0, 1),
    # Attributes of the author's own (user_goal, excerpts): spans without messages are no conversation.
    "otel_agent_traces/dazzaji_test-traces.json": (0, 0, 2),
    "otel_agent_traces/dazzaji_otel_traces_2025-06-29_00-23-24.json": (0, 0, 1),
    "otel_agent_traces/dazzaji_otel_traces_2025-06-29_00-23-24_by_trace.json": (0, 0, 1),
    # A list of steps {stage, inputs, outputs}, no spans at all.
    "otel_agent_traces/dazzaji_manual_traces.json": (0, 0, 1),
    # Metrics only.
    "otel_agent_traces/oicodex_codex-cli-0.131.0-alpha.8__exec-smoke__decoded__metrics-0001.json": (0, 0, 1),
    "otel_agent_traces/oicodex_codex-cli-0.131.0-alpha.8__exec-smoke__raw__metrics-0001.json": (0, 0, 1),
    # MANIFEST says its calls are approximate: tool spans count there, or calls as often as they are resent.
    "otel_agent_traces/agentpile_openai_agents_0.24.0_oi_2.5.3.jsonl": (1, 2, 0),
    "otel_agent_traces/agentpile_pydantic_ai_2.58.0.json": (2, 2, 0),
    # Two of the ten traces are embeddings.
    "otel_agent_traces/oi_spans-by-operation.json": (8, 0, 2),
}


@cache
def rows(path: Path, root: Path):
    return tuple(read_file(path, root=root, partner=partner_of(path, root)))


def calls_of(found):
    return sum(len(m.tool_calls) for row in found if isinstance(row, Session) for m in row.messages)


def manifest(usage, folder):
    with (usage / "MANIFEST.tsv").open(newline="") as file:
        listed = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row for row in listed if row["format"] == folder and (usage / row["path"]).is_file()]


@pytest.mark.parametrize("folder", FORMATS)
def test_counts_agree_with_the_manifest(usage, folder):
    listed = manifest(usage, folder)
    assert listed
    for row in listed:
        found = rows(usage / row["path"], usage)
        sessions = sum(isinstance(r, Session) for r in found)
        got = (sessions, calls_of(found), len(found) - sessions)
        wanted = EXPLAINED.get(row["path"], (int(row["sessions"]), int(row["tool_calls"]), 0))
        assert got == wanted, row["path"]
        assert all(r.format in (FORMATS[folder], None) for r in found), row["path"]


def test_tau_in_full(usage):
    found = rows(usage / "openai_chat_tau" / "gpt-4o-airline.json", usage)
    assert len(found) == 200
    # The turns of the MANIFEST are messages of every role, system and tool included.
    assert sum(len(s.messages) for s in found) == 5308
    assert calls_of(found) == 1164
    assert len({s.source_id for s in found}) == 200
    results = [m for s in found for m in s.messages if m.role == "tool"]
    assert len(results) == 1164
    assert all(m.answers_message is not None for m in results)
    repeated = 0
    for session in found:
        ids = [c.call_id for m in session.messages for c in m.tool_calls]
        repeated += len(ids) - len(set(ids))
        for i, m in enumerate(session.messages):  # an answer directly follows its call in these logs
            assert m.role != "tool" or m.answers_message == i - 1
    assert repeated == 73
    silent = [m for s in found for m in s.messages if m.tool_calls and m.content is None]
    assert len(silent) == 1074


def test_human_turns_of_the_sft_and_swe_logs(usage):
    for path in (*(usage / "openai_chat_sft").iterdir(), *(usage / "swe_agent_traj").iterdir()):
        for session in rows(path, usage):
            assert sum(m.role == "user" for m in session.messages) == 1, path
            calls = calls_of([session])
            assert sum(m.role == "tool" for m in session.messages) in (calls, calls - 1), path


def test_unanswered_calls_of_the_rollouts(usage):
    unanswered = 0
    for path in (usage / "nemo_gym_rollouts").iterdir():
        found = rows(path, usage)
        paired = sum(m.answers_message is not None for s in found for m in s.messages)
        assert all(m.answers_message is not None for s in found for m in s.messages if m.role == "tool")
        unanswered += calls_of(found) - paired
    # Five at truncation, five and one at the end of single-step rollouts.
    assert unanswered == 11


def test_every_file_gives_sessions_or_rejects_and_ids_are_unique(usage):
    seen = []
    for path in input_files(usage):
        found = rows(path, usage)
        assert found, path
        if detect(path) is None:
            assert [(r.reason, r.format) for r in found] == [("unknown_format", None)], path
        assert {r.reason for r in found if isinstance(r, Reject)} <= {"unknown_format", "no_conversation"}, path
        seen += [r.session_id if isinstance(r, Session) else r.reject_id for r in found]
    assert len(seen) == len(set(seen))


def test_other_folders_that_hold_these_shapes(usage):
    known = {path.parent.name for path in input_files(usage) if detect(path)}
    assert known == {*FORMATS, "edge_cases", "mini_swe_agent", "mixed_small_exports"}
