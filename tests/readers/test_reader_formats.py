"""The traps of each format, on small logs written for this project."""

import json

import pytest
from reader_support import answers, call, one, read, roles

from pipelines.readers.common import clean


def user(text):
    return {"role": "user", "content": text}


def reply(text, *calls):
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})}


def result(call_id, text):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


# OpenAI chat-completions


def test_chat_ids_that_repeat_pair_with_the_nearest_call(tmp_path):
    log = [user("a"), reply(None, call("x", "f")), result("x", "1"), reply(None, call("x", "g")), result("x", "2")]
    session = one(tmp_path, [{"id": "s1", "model": "m", "messages": log, "tools": [call(None, "f")]}])
    assert answers(session) == [(1, 0), (3, 0)]
    assert [m.name for m in session.messages if m.role == "tool"] == ["f", "g"]
    assert (session.source_id, session.model, session.tools[0].name) == ("s1", "m", "f")
    assert session.messages[1].content is None


def test_tau_records_in_an_array(tmp_path):
    record = {"task_id": 3, "trial": 1, "reward": 0.5, "traj": [user("a"), reply("b")]}
    sessions, rejects = read(tmp_path, json.dumps([record, record], indent=1))
    assert rejects == []
    assert [(s.source_id, s.position, s.reward) for s in sessions] == [("3/1", "item 0", 0.5), ("3/1", "item 1", 0.5)]


@pytest.mark.parametrize("given", ['{"a": 1}', {"a": 1}, "{'a': 1}"])
def test_chat_arguments_as_text_object_or_python(tmp_path, given):
    session = one(tmp_path, [{"messages": [user("a"), reply(None, call("x", "f", given))]}])
    assert json.loads(session.messages[1].tool_calls[0].arguments_json) == {"a": 1}


def test_chat_result_under_role_user(tmp_path):
    log = [user("a"), reply(None, call("x", "f")), user("Error: no such order"), reply("sorry"), user("bye")]
    session = one(tmp_path, [{"messages": log}])
    assert roles(session) == ["user", "assistant", "tool", "assistant", "user"]
    assert answers(session) == [(1, 0)]


def test_chat_text_tag_calls(tmp_path):
    prompt = {"role": "system", "content": "Call <function=name><parameter=p>v</parameter></function>."}
    said = "Look first.\n<function=bash>\n<parameter=command>ls\n-la</parameter>\n</function>"
    log = [prompt, user("fix it"), reply(said), user("OBSERVATION:\nfile"), reply("<function=submit>\n")]
    session = one(tmp_path, [{"messages": log}])
    assert roles(session) == ["system", "user", "assistant", "tool", "assistant"]
    assert session.messages[2].content == "Look first."
    assert json.loads(session.messages[2].tool_calls[0].arguments_json) == {"command": "ls\n-la"}
    assert session.messages[4].tool_calls[0].name == "submit"


def test_chat_tags_that_nobody_asked_for_stay_text(tmp_path):
    session = one(tmp_path, [{"messages": [user("what is XML?"), reply("e.g. <function=f></function>"), user("ok")]}])
    assert roles(session) == ["user", "assistant", "user"]
    assert session.messages[1].tool_calls == []


def test_chat_bare_messages_with_fenced_commands(tmp_path):
    log = [
        user("Answer with ```mswea_bash_command\nls\n```"),
        reply("Look.\n```mswea_bash_command\necho 1\n```"),
        user("<output>1</output>"),
    ]
    for text in (json.dumps(log, indent=1), "\n".join(map(json.dumps, log))):
        session = one(tmp_path, text)
        assert roles(session) == ["user", "assistant", "tool"]
        assert json.loads(session.messages[1].tool_calls[0].arguments_json) == {"command": "echo 1"}


def test_chat_records_that_are_no_conversation(tmp_path):
    good, odd = {"messages": [user("a")]}, {"messages": [user("a"), {"role": "ghost", "content": "x"}]}
    sessions, rejects = read(tmp_path, [good, odd, {"messages": []}, {"messages": [user("a"), 7]}, good])
    assert [s.position for s in sessions] == ["line 1", "line 5"]
    assert [(r.line, r.reason, r.field) for r in rejects] == [
        (2, "unknown_role", "messages[1].role"),
        (3, "no_conversation", None),
        (4, "unexpected_shape", "messages[1]"),
    ]


def test_chat_legacy_function_call_and_appended_choice(tmp_path):
    log = [user("a"), {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}]
    log.append({"role": "function", "name": "f", "content": "1"})
    session = one(tmp_path, [{"messages": log, "choices": [{"message": reply("done")}]}])
    assert roles(session) == ["user", "assistant", "tool", "assistant"]
    assert answers(session) == [(1, 0)]


# OpenAI Responses


def item(call_id, name):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


def output(call_id, text):
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def test_responses_items_become_messages(tmp_path):
    record = {
        "responses_create_params": {
            "input": [{"role": "user", "content": "a"}],
            "instructions": "Be brief.",
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        },
        "response": {
            "id": "r1", "model": "m", "status": "completed", "usage": {"input_tokens": 9, "output_tokens": 4},
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Both."}]},
                item("1", "f"), item("2", "g"), output("1", "one"), output("2", "two"),
                {"type": "reasoning", "summary": []},
                item("3", "f"),
            ],
        },
        "reward": 1,
    }  # fmt: skip
    session = one(tmp_path, [record])
    assert roles(session) == ["system", "user", "assistant", "tool", "tool", "assistant"]
    first = session.messages[2]
    assert (first.reasoning, first.content, [c.name for c in first.tool_calls]) == ("hm", "Both.", ["f", "g"])
    assert answers(session) == [(2, 0), (2, 1)]
    assert (session.input_tokens, session.output_tokens, session.reward, session.outcome) == (9, 4, 1.0, "completed")


def test_responses_input_as_text_and_usage_that_was_not_counted(tmp_path):
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}
    response = {"output": [message], "usage": {"input_tokens": 0, "output_tokens": 0}}
    for record in (
        {"responses_create_params": {"input": "a"}, "response": response},
        {"request": {"input": "a"}, "response": response},
        {"input": "a", **response},
    ):
        session = one(tmp_path, [record])
        assert [m.content for m in session.messages] == ["a", "b"]
        assert session.input_tokens is None


# Claude Code


def line(kind, content, uuid, parent=None, **more):
    message = {"role": kind, "content": content, **more.pop("message", {})}
    base = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "isSidechain": False}
    return {**base, "timestamp": "2026-01-01T00:00:00Z", "message": message, **more}


def test_claude_one_message_over_several_lines_counts_once(tmp_path):
    usage = {"input_tokens": 5, "cache_read_input_tokens": 10, "output_tokens": 7}
    common = {"message": {"id": "m1", "model": "claude", "usage": usage}}
    log = [
        {"type": "summary", "summary": "x", "leafUuid": "u"},
        line("user", "go", "1"),
        line("assistant", [{"type": "thinking", "thinking": "hm"}], "2", "1", **json.loads(json.dumps(common))),
        line("assistant", [{"type": "text", "text": "ok"}], "3", "2", **json.loads(json.dumps(common))),
        line("assistant", [{"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}], "4", "3",
             **json.loads(json.dumps(common))),
        line("user", [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "f"}]}], "5"),
        {"type": "brand-new-kind", "sessionId": "s"},
        line("user", "<caveat>", "6", isMeta=True),
    ]  # fmt: skip
    session = one(tmp_path, log)
    assert roles(session) == ["user", "assistant", "tool", "system"]
    reply_ = session.messages[1]
    assert (reply_.reasoning, reply_.content, reply_.tool_calls[0].name) == ("hm", "ok", "Bash")
    assert answers(session) == [(1, 0)]
    assert (session.input_tokens, session.output_tokens, session.source_id) == (15, 7, "s")


def test_claude_lines_written_twice_count_once(tmp_path):
    log = [line("user", "go", "1"), line("user", "go", "1"), line("user", "go", "2")]
    assert roles(one(tmp_path, log)) == ["user", "user"]


def test_claude_sidechains_are_told_apart(tmp_path):
    log = [
        line("user", "main", "1"),
        line("user", "sub one", "a", isSidechain=True),
        line("user", "sub two", "b", isSidechain=True),
        line("assistant", [{"type": "text", "text": "one"}], "a2", "a", isSidechain=True),
        line("assistant", [{"type": "text", "text": "two"}], "b2", "b", isSidechain=True),
        line("assistant", [{"type": "text", "text": "done"}], "2", "1"),
    ]
    session = one(tmp_path, log)
    assert [m.agent for m in session.messages] == [
        None, "sidechain_1", "sidechain_2", "sidechain_1", "sidechain_2", None
    ]  # fmt: skip


def test_claude_sessions_in_one_file_and_errors(tmp_path):
    failed = line("user", [{"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True}], "2")
    log = [line("user", "a", "1"), line("user", "b", "1", sessionId="other"), failed]
    sessions, rejects = read(tmp_path, log)
    assert rejects == []
    assert [(s.source_id, s.position, len(s.messages)) for s in sessions] == [
        ("s", "line 1", 2),
        ("other", "line 2", 1),
    ]
    assert sessions[0].messages[1].is_error is True
    assert answers(sessions[0]) == [None]


def test_claude_web_export_stream_json_and_images(tmp_path):
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 9999}}
    web = {"loglines": [{"type": "user", "message": {"role": "user", "content": [picture]}}]}
    assert one(tmp_path, json.dumps(web, indent=2)).messages[0].content == "[image/png]"
    stream = [
        {"type": "system", "subtype": "init", "session_id": "q", "tools": ["Bash"]},
        {"type": "assistant", "parent_tool_use_id": "t9", "message": {"role": "assistant", "content": "x"}},
        {"type": "result", "subtype": "success"},
    ]
    session = one(tmp_path, stream)
    assert (session.source_id, session.outcome, session.tools[0].name) == ("q", "success", "Bash")
    assert session.messages[0].agent == "t9"


def test_claude_file_without_messages_is_rejected_with_its_reason(tmp_path):
    sessions, rejects = read(tmp_path, [{"type": "summary", "summary": "x", "leafUuid": "u"}])
    assert sessions == []
    assert [(r.format, r.reason) for r in rejects] == [("claude_code", "no_conversation")]


# SWE-agent


def test_swe_agent_demonstrations_do_not_count_and_steps_come_from_the_trajectory(tmp_path):
    run = {
        "environment": "main",
        "history": [
            {"role": "system", "content": "s", "agent": "main"},
            {"role": "user", "content": "demo", "agent": "main", "is_demo": True},
            {"role": "user", "content": "issue", "agent": "main"},
            {"role": "assistant", "content": "t", "action": "open a.py", "agent": "main",
             "tool_calls": [call("c1", "open", "{}")]},
            {"role": "tool", "content": "seen", "agent": "main", "tool_call_ids": ["c1"]},
        ],
        "trajectory": [
            {"action": "open a.py", "observation": "text", "response": "t", "thought": "t", "state": "{}"},
            {"action": "python a.py\n", "observation": "", "response": "run", "thought": "run", "state": {}},
        ],
        "info": {"exit_status": "submitted", "model_stats": {"tokens_sent": 0, "tokens_received": 0}},
    }  # fmt: skip
    session = one(tmp_path, json.dumps(run, indent=1))
    assert roles(session) == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert answers(session) == [(2, 0), (4, 0)]
    assert [m.tool_calls[0].name for m in session.messages if m.tool_calls] == ["open", "bash"]
    assert (session.outcome, session.input_tokens) == ("submitted", None)
    del run["trajectory"]
    session = one(tmp_path, json.dumps(run))
    assert roles(session) == ["system", "user", "assistant", "tool"]
    assert answers(session) == [(2, 0)]


# OpenTelemetry


def span(span_id, start, parent=None, trace="t1", **attributes):
    pairs = [{"key": k.replace("__", "."), "value": v} for k, v in attributes.items()]
    raw = {"traceId": trace, "spanId": span_id, "name": span_id, "startTimeUnixNano": str(start * 10**9)}
    return {**raw, "attributes": pairs, **({"parentSpanId": parent} if parent else {})}


def text(value):
    return {"stringValue": value}


def batch(*spans):
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": list(spans)}]}]}


def test_otel_history_counts_once_and_children_come_before_parents(tmp_path):
    asked = {"role": "user", "parts": [{"type": "text", "content": "weather?"}]}
    called = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "w", "arguments": {"x": 1}}]}
    answered = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "result": "sunny"}]}
    done = {"role": "assistant", "parts": [{"type": "text", "content": "Sunny."}]}
    second = span(
        "b",
        3,
        "root",
        gen_ai__input__messages=text(json.dumps([asked, called, answered])),
        gen_ai__output__messages=text(json.dumps([done])),
        gen_ai__usage__input_tokens={"intValue": "20"},
    )
    first = span(
        "a",
        1,
        "root",
        gen_ai__input__messages=text(json.dumps([asked])),
        gen_ai__output__messages=text(json.dumps([called])),
        gen_ai__usage__input_tokens={"intValue": "10"},
    )
    tool = span("tool", 2, "root", gen_ai__tool__call__id=text("c"), gen_ai__tool__call__result=text("sunny"))
    root = span("root", 0, gen_ai__agent__name=text("helper"), gen_ai__output__messages=text(json.dumps([done])))
    for log in ([batch(second, first), batch(tool, root)], json.dumps(batch(second, first, tool, root), indent=1)):
        session = one(tmp_path, log)
        assert [(m.role, m.content) for m in session.messages] == [
            ("user", "weather?"), ("assistant", None), ("tool", "sunny"), ("assistant", "Sunny.")
        ]  # fmt: skip
        assert answers(session) == [(1, 0)]
        assert (session.position, session.input_tokens) == ("trace t1", 30)


@pytest.mark.parametrize(
    ("status", "wanted"),
    [({}, None), ({"code": 2}, True), ({"code": "STATUS_CODE_OK"}, False), ({"status_code": "ERROR"}, True)],
)
@pytest.mark.parametrize("resent", [True, False])
def test_otel_tool_span_says_whether_the_call_failed(tmp_path, status, wanted, resent):
    called = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "w", "arguments": {}}]}
    answered = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "result": "nothing"}]}
    first = span("a", 1, gen_ai__output__messages=text(json.dumps([called])))
    tool = span("b", 2, gen_ai__tool__call__id=text("c"), gen_ai__tool__call__result=text("nothing"))
    second = span("d", 3, gen_ai__input__messages=text(json.dumps([called, answered])))
    if resent:
        del tool["attributes"][1]
    session = one(tmp_path, [batch(first, {**tool, "status": status}, second)])
    assert [m.is_error for m in session.messages if m.role == "tool"] == [wanted]


def test_otel_openinference_and_sdk_dump(tmp_path):
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "hi",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "f",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"a": 1}',
        "llm.token_count.completion": "7",
    }
    dump = {"name": "llm", "context": {"trace_id": "t", "span_id": "s"}, "parent_id": None, "start_time": 10**18}
    session = one(tmp_path, json.dumps({"spans": [{**dump, "attributes": attributes}]}))
    assert roles(session) == ["user", "assistant"]
    assert session.messages[1].tool_calls[0].call_id == "c"
    assert session.output_tokens == 7
    assert session.messages[0].timestamp.year == 2001


def test_otel_without_a_conversation(tmp_path):
    for log in ([{"resourceMetrics": []}], [batch(span("a", 1)), batch(span("b", 1, trace="t2"))]):
        sessions, rejects = read(tmp_path, log)
        assert sessions == []
        assert {(r.format, r.reason) for r in rejects} == {("otel", "no_conversation")}
        assert len({r.reject_id for r in rejects}) == len(log)


# ShareGPT


def test_sharegpt_calls_and_results(tmp_path):
    record = {
        "conversations": [
            {"from": "human", "value": "area?"},
            {"from": "function_call", "value": '{"name": "area", "arguments": {"r": 2}}'},
            {"from": "observation", "value": '{"area": 12.5}'},
            {"from": "gpt", "value": "12.5"},
        ],
        "tools": '[{"name": "area", "description": "d", "parameters": {"type": "object"}}]',
        "system": "Be brief.",
    }
    session = one(tmp_path, json.dumps([record]))
    assert roles(session) == ["system", "user", "assistant", "tool", "assistant"]
    assert answers(session) == [(2, 0)]
    assert session.tools[0].name == "area"


def test_sharegpt_typed_content(tmp_path):
    called = {"type": "tool_call", "value": '{"name": "f", "arguments": {}}'}
    blocks = [{"type": "reasoning", "value": "hm"}, {"type": "text", "value": "ok"}, called]
    log = [{"role": "user", "content": [{"type": "text", "value": "hi"}]}, {"role": "assistant", "content": blocks}]
    session = one(tmp_path, [{"messages": log}])
    message = session.messages[1]
    assert (message.reasoning, message.content, message.tool_calls[0].name) == ("hm", "ok", "f")


def test_sharegpt_unknown_sender(tmp_path):
    record = {"conversations": [{"from": "human", "value": "a"}, {"from": "moon", "value": "b"}]}
    _, rejects = read(tmp_path, [record])
    assert [(r.reason, r.field) for r in rejects] == [("unknown_role", "conversations[1].from")]
    assert clean("moon") not in rejects[0].model_dump_json()
