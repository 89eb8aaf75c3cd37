"""What one session contributes: cells, categories, domain, errors and recoveries."""

import pytest
from pattern_sessions import session

from pipelines.categories import call_category, tool_category
from pipelines.patterns import Features, bucket_low, features, reports_error
from schemas.session import Message, Session, ToolCall


@pytest.mark.parametrize(
    ("names", "category"),
    [
        ("Bash bash execute_bash run_command functions.shell terminal run_shell_command container.exec", "shell"),
        ("Read read_file view_file open scroll_down NotebookRead read_log read_attachment", "read_file"),
        ("Edit MultiEdit str_replace_editor apply_patch edit_config NotebookEdit", "edit_file"),
        ("Write write_file create_file move_file create_folder", "write_file"),
        ("Glob Grep LS search_dir find_file list_files list_folder mcp__files__search_files", "search"),
        ("run_sql query_database describe_table execute_sql_query", "database"),
        ("run_python ipython code_interpreter stateful_python_code_exec calculate", "run_code"),
        ("WebSearch WebFetch web_search browser_navigate", "web"),
        ("TodoWrite think update_plan", "plan"),
        ("Task assign_task spawn_teammate transfer_to_agent", "delegate"),
        ("send_email post_update transfer_to_human_agents", "message"),
        ("AskUserQuestion ask_user", "ask_user"),
        ("get_order_details find_customer_id_by_email search_books query_metrics check_approval", "look_up"),
        ("cancel_pending_order book_reservation update_reservation_flights reset_mfa grant_access", "transact"),
        ("submit finish attempt_completion", "finish"),
        ("frobnicate 数据 _", "other"),
    ],
)
def test_tool_names(names: str, category: str) -> None:
    assert {name: tool_category(name) for name in names.split()} == dict.fromkeys(names.split(), category)


def test_an_editor_does_what_its_command_says() -> None:
    calls = {
        c: ToolCall(name="str_replace_editor", arguments_json=f'{{"command": "{c}"}}') for c in ("view", "create", "x")
    }
    assert [call_category(call) for call in calls.values()] == ["read_file", "write_file", "edit_file"]
    assert call_category(ToolCall(name="edit", arguments_json='["command"]')) == "edit_file"


def test_counts_of_a_session() -> None:
    found = features(session(1, "a", "Read", "Edit!", "Edit", "Bash!", "Grep"))
    times = {cell: sum(t for _, t in support.values()) for cell, support in found.cells.items()}
    assert times == {
        "all": 1,
        "call:read_file": 1,
        "call:edit_file": 2,
        "call:shell": 1,
        "call:search": 1,
        "step:read_file>edit_file": 1,
        "step:edit_file>edit_file": 1,
        "step:edit_file>shell": 1,
        "step:shell>search": 1,
        "turns:4": 1,
        "calls:4": 1,
        "tokens:16": 1,
        "errors:2": 1,
        "recoveries:1": 1,
    }
    assert found.key == "software/workspace/solo"


def test_agents_together_and_each_agents_own_steps() -> None:
    found = features(session(1, "a", "Task", "Read@sub", "Bash", "Grep@sub"))
    assert found.together
    assert {c for c in found.cells if c.startswith("step:")} == {"step:delegate>shell", "step:read_file>search"}


def test_logged_tokens_win_over_the_estimate() -> None:
    assert "tokens:1024" in features(session(1, "a", input_tokens=1000, output_tokens=50)).cells
    assert "tokens:4" in features(session(1, "a", input_tokens=1000)).cells


@pytest.mark.parametrize(
    ("ask", "tools", "key"),
    [
        ("total revenue per month from the sales table", ["run_sql"], "data_analysis/database/solo"),
        ("rename the photos in this folder", ["move_file"], "office/workspace/solo"),
        ("refund my order please", ["get_order_details", "return_items"], "customer_support/service/solo"),
        ("alert: disk full on host a, restart the service", ["run_command"], "operations/workspace/solo"),
        ("find three published studies on soil", ["web_search"], "research/web/solo"),
        ("hm", [], "other/talk/solo"),
    ],
)
def test_domains(ask: str, tools: list[str], key: str) -> None:
    assert features(session(1, "a", *tools, ask=ask)).key == key


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("Error: no such column: x", True),
        ("Traceback (most recent call last):\n  File", True),
        ("ran\nTraceback (most recent call last):", True),
        ('{"error": "not found"}', True),
        ("ls: cannot access 'x': No such file or directory", True),
        ("sh: 1: pytest: command not found", True),
        ("<returncode>2</returncode>", True),
        ("fatal: not a git repository", True),
        ("Errors: 0", False),
        ('{"error": null, "rows": 3}', False),
        ("errors.py\nfailed_logins.csv", False),
        ("4 passed in 0.1s", False),
        ("exit code: 0", False),
        ("", False),
    ],
)
def test_errors_told_by_text(text: str, failed: bool) -> None:
    assert reports_error(Message(role="tool", content=text)) is failed
    assert reports_error(Message(role="tool", content=text, is_error=not failed)) is not failed


def test_calls_without_result_neither_fail_nor_recover() -> None:
    one = session(1, "a", "Bash!")
    call = Message(role="assistant", tool_calls=[ToolCall(name="Bash", arguments_json="{}")])
    found = features(Session.model_validate(one.model_dump() | {"messages": [*one.messages, call]}))
    assert "errors:1" in found.cells and "recoveries:0" in found.cells


def test_features_hold_no_text_and_survive_json() -> None:
    found = features(session(1, "Partner Ltd", "internal_codename_tool", ask="the codename is Walrus"))
    data = found.to_json()
    assert Features.from_json(data) == found
    assert b"Partner" not in data and b"codename" not in data and b"Walrus" not in data


def test_buckets() -> None:
    assert [bucket_low(n) for n in (0, 1, 2, 3, 4, 7, 8, 1023, 1024)] == [0, 1, 2, 2, 4, 4, 8, 512, 1024]
