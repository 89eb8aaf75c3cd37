"""Both scaffolds: what is written is read back with the same effect, and no text of anyone's raises."""

import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.scaffolds import SCAFFOLDS, scaffold
from schemas.errors import ConfigError
from schemas.task import Action

TOOLS = ("bash", "read_file", "write_file", "submit", "send_message", "wait")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=200)
TRICKY = st.one_of(
    TEXT,
    st.sampled_from(["</tool_call>", "```", "````bash\nx\n````", "END\nEND_", "a\n", "\n", "'\"$`\\", "<tool_call>{}"]),
)
PATHS = st.text("abc d.'-_", min_size=1, max_size=12).map(lambda p: "d/" + p)


def action(tool: str, **arguments: str) -> Action:
    return Action(tool=tool, arguments_json=json.dumps(arguments, ensure_ascii=False))


ACTIONS = st.one_of(
    st.builds(lambda c: action("bash", command="true " + c), TRICKY),
    st.builds(lambda p: action("read_file", path=p), PATHS),
    st.builds(lambda p, c: action("write_file", path=p, content=c), PATHS, TRICKY),
    st.builds(lambda a: action("submit", answer=a), TRICKY),
    st.builds(lambda t: action("send_message", to="lead", text=t), TRICKY),
    st.just(action("wait")),
)


@given(thought=st.text("ab .,\n", max_size=40), wanted=ACTIONS)
def test_tool_json_reads_what_it_writes(thought: str, wanted: Action) -> None:
    read = scaffold("tool_json").parse(scaffold("tool_json").write(thought, wanted), TOOLS)
    assert read.error is None
    assert [(a.tool, json.loads(a.arguments_json)) for a in read.actions] == [
        (wanted.tool, json.loads(wanted.arguments_json))
    ]


@given(thought=st.text("ab .,", max_size=40), wanted=ACTIONS)
def test_bash_minimal_reads_what_it_writes(thought: str, wanted: Action) -> None:
    read = scaffold("bash_minimal").parse(scaffold("bash_minimal").write(thought, wanted), TOOLS)
    assert read.error is None
    (got,) = read.actions
    if wanted.tool in ("submit", "send_message", "wait", "bash"):
        assert got.tool == wanted.tool
        assert json.loads(got.arguments_json) == json.loads(wanted.arguments_json)
    else:
        assert got.tool == "bash"


@pytest.mark.parametrize("content", ["x\n", "x", "", "\n", "END\n", "it's $HOME `id` \\n\n", "a\n\nEND_\n"])
def test_bash_minimal_writes_the_very_bytes(tmp_path, content: str) -> None:
    wanted = action("write_file", path="a b/c'd.txt", content=content)
    (got,) = scaffold("bash_minimal").parse(scaffold("bash_minimal").write("t", wanted), TOOLS).actions
    subprocess.run(["bash", "-c", json.loads(got.arguments_json)["command"]], cwd=tmp_path, check=True)
    assert (tmp_path / "a b/c'd.txt").read_text() == content


@pytest.mark.parametrize("name", SCAFFOLDS)
@given(reply=st.one_of(TEXT, st.text('<tool_cal>/`bash\n{}"name:arguments[]submit \\ud800', max_size=120)))
def test_any_reply_is_read_or_explained(name: str, reply: str) -> None:
    read = scaffold(name).parse(reply, TOOLS)
    assert bool(read.actions) != bool(read.error)


@pytest.mark.parametrize(
    "reply",
    [
        '<tool_call>{"name": "bash", "arguments": {"command": 3}}</tool_call>',
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"command": "ls", "x": 1}}</tool_call>',
        '<tool_call>{"name": ["bash"], "arguments": {}}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"command": "\\ud800"}}</tool_call>',
        "<tool_call>" + "[" * 100_000,
        "<tool_call>",
        '<tool_call>{"name": "wait", "arguments": {}} and then some',
    ],
)
def test_tool_json_refuses_a_wrong_call(reply: str) -> None:
    assert scaffold("tool_json").parse(reply, TOOLS).error


@pytest.mark.parametrize("name", SCAFFOLDS)
@given(wanted=ACTIONS)
def test_a_garbled_reply_is_refused(name: str, wanted: Action) -> None:
    assert scaffold(name).parse(scaffold(name).write_garbled("so", wanted), TOOLS).error


def test_the_effort_line_comes_first() -> None:
    for module in SCAFFOLDS.values():
        assert module.system_prompt("You.", TOOLS, 75).splitlines()[0] == "Reasoning effort: 75 of 100."


def test_an_unknown_scaffold_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="tool_json"):
        scaffold("xml")
