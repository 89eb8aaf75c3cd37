"""What reads a run: SQL views, one episode on a terminal, the summary. Hostile text stays text."""

import io
import json
import shutil
from pathlib import Path

import pytest
from pipeline_run import HOSTILE, episode, hand_made
from rich.console import Console

from pipelines import folder as folders
from pipelines import pool_counts, store
from pipelines.folder import RunFolder
from pipelines.show import find_episode, print_episode
from pipelines.sql import print_query, query
from pipelines.summary import SMALL_MODEL, Section, print_summary, summarise
from pipelines.terminal import plain
from schemas.errors import ConfigError, InputError, StageError
from schemas.tables import TABLES, arrow_schema


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return hand_made(tmp_path)


def test_every_table_has_a_view_with_its_columns(run: RunFolder) -> None:
    for name in TABLES:
        columns, rows = query(run, f"select * from {name}")
        assert columns == arrow_schema(name).names
        assert (len(rows) > 0) == (name in {"sessions", "tasks", "episodes", "rejects"})


def test_the_query_of_the_manual(run: RunFolder) -> None:
    text = "select environment, scaffold, policy, count(*), avg(passed) from episodes group by all order by policy"
    assert query(run, text)[1] == [
        ("table_work", "tool_json", "blueprint", 3, 0.5),
        ("table_work", "tool_json", "engine", 2, 0.0),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "select * from read_text('/etc/passwd')",
        "select * from '/etc/passwd'",
        "copy (select 1) to 'out.csv'",
        "copy (select 1) to '{run}/out.csv'",
        "attach '{run}/x.db' as x",
        "create table x (a int)",
        "set enable_external_access = true",
        "install httpfs",
        "select 1; select 2",
        "drop view episodes",
        "select nothing from episodes",
        "selec 1",
        "",
    ],
)
def test_only_reading_and_only_the_run(run: RunFolder, text: str) -> None:
    before = sorted(run.path.rglob("*"))
    with pytest.raises(ConfigError, match="sql: "):
        query(run, text.replace("{run}", str(run.path)))
    assert sorted(run.path.rglob("*")) == before


def test_an_error_that_quotes_a_value_is_disarmed(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match="Conversion Error") as caught:
        query(run, "select cast('a' || chr(27) || '[31m' as int)")
    assert "\x1b" not in str(caught.value)


def test_csv_on_a_terminal_is_disarmed(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    print_query(run, "select 'a' || chr(27) || '[31m' as x", "csv")
    assert terminal.getvalue() == "x\na\\x1b[31m\n"


def test_formats(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    text = "select 'a,b' as \"x y\", null as n, 2 as two"
    print_query(run, text, "csv")
    assert capsys.readouterr().out.splitlines() == ["x y,n,two", '"a,b",,2']
    print_query(run, text, "json")
    assert json.loads(capsys.readouterr().out) == {"x y": "a,b", "n": None, "two": 2}
    print_query(run, "select trajectories from episodes where episode_id = 'episode_aa1'", "table")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "1 row" in printed


def test_a_removed_session_store_is_said(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with folders.finishing(run, "ingest"):
        pass
    shutil.rmtree(run.table("sessions"))
    print_query(run, "select count(*) as n from sessions", "json")
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"n": 0}
    assert "session store was removed" in printed.err


def test_plain_keeps_text_and_disarms_the_rest() -> None:
    assert plain("naïve — 漢字 ✓\n\ttab") == "naïve — 漢字 ✓\n\ttab"
    assert plain(HOSTILE) == r"\x1b[31mred\x1b[0m [bold]not bold[/bold] \u202egnp.exe\x07\x9b2J"
    assert plain("\r\x00\u2028\ud800") == r"\r\x00\u2028\ud800"


def shown(run: RunFolder, prefix: str, **console: object) -> str:
    out = io.StringIO()
    print_episode(run, prefix, Console(file=out, width=120, **console))  # type: ignore[arg-type]
    return out.getvalue()


def test_an_episode_by_the_beginning_of_its_id(run: RunFolder) -> None:
    assert find_episode(run, "episode_ab")[0].episode_id == "episode_ab"
    assert find_episode(run, "aa2")[0].episode_id == "episode_aa2"
    episode, task = find_episode(run, "aa1")
    assert task is not None
    assert task.task_id == episode.task_id
    with pytest.raises(InputError, match="2 episodes begin with 'aa': episode_aa1, episode_aa2"):
        find_episode(run, "aa")
    with pytest.raises(InputError, match="0 episodes"):
        find_episode(run, "x' or true --")


def test_show_says_what_it_is(run: RunFolder) -> None:
    text = shown(run, "aa2")
    for words in (
        "synthetic: blueprint", "slip: a deliberate mistake", "unreadable: no call", "ended by length", "FAILED",
        "✗ sum", "✓ kept", "seed", "add the column",
    ):  # fmt: skip
        assert words in text
    assert "engine: smollm2" in shown(run, "ac")
    assert "UNDECIDED" in shown(run, "ad")
    assert "SandboxDied: gone" in shown(run, "ab")


def test_show_neutralises_hostile_text(run: RunFolder) -> None:
    text = shown(run, "aa1", force_terminal=True, color_system="standard")
    assert "[bold]not bold[/bold]" in text
    assert r"\x1b[31mred\x1b[0m" in text
    assert not {"\x07", "\x9b", "\u202e"} & set(text)
    assert "\x1b[31mred" not in text


def sections(run: RunFolder) -> dict[str, Section]:
    return {section.title: section for section in summarise(run)}


def test_summary(run: RunFolder) -> None:
    found = sections(run)
    assert found["sessions"].rows == [("openai_chat", 2, 0), ("otel", 0, 2)]
    assert ("suppressed: too_few_sessions", 1, None, None) in found["patterns"].rows
    assert found["tasks"].rows == [("table_work", 2, 0)]
    assert found["candidates refused"].rows == [("blueprint_fails", 1)]
    assert found["episodes"].rows == [
        ("blueprint", "tool_json", "solo", 3, 1, 1, "50.0 %", 0, 0, 1),
        ("engine", "tool_json", "solo", 2, 0, 1, "0.0 %", 0, 0, 0),
    ]
    assert found["episodes"].note == SMALL_MODEL.format(passed=0, played=2)
    missed = {row[0]: row[-1] for row in found["blueprint episodes that did not pass"].rows}
    assert missed == {
        "episode_aa2": "submitted; does not hold: sum",
        "episode_ab": "sandbox_error: SandboxDied: gone",
    }
    assert found["tokens"].rows == [("engine", 20, 10)]
    assert "samples" not in found
    out = io.StringIO()
    print_summary(run, Console(file=out, width=140))
    assert "a few percent" in out.getvalue()


def test_what_sandboxes_cost_is_shown_where_there_is_something(run: RunFolder) -> None:
    crash = {"stop_reason": "sandbox_crashed", "repercussion": "sandbox_crashed", "error": "PID 1 is gone"}
    made = [
        episode("c1", "scripted", False, **crash),
        episode("c2", "scripted", False, stop_reason="sandbox_expired"),
        episode("c3", "scripted", True, attempts=2),
    ]
    store.write_table(run.path, "episodes", made, 1)
    found = sections(run)["episodes"]
    assert found.columns[-3:] == ("crashed", "expired", "lost")
    assert found.rows == [("scripted", "tool_json", "solo", 3, 1, 0, "33.3 %", 1, 1, 1)]
    assert "repercussion: sandbox_crashed" in shown(run, "c1")
    assert "begun 2 times" in shown(run, "c3")
    store.write_table(run.path, "episodes", [episode("c4", "scripted", True)], 1)
    found = sections(run)["episodes"]
    assert (found.columns[-1], found.note) == ("pass rate", "")


def test_what_pools_counted_is_added_up_and_shown_in_one_line(run: RunFolder) -> None:
    one = {"created": 3, "peak": 2, "reclaimed": 0, "refused": {}, "deaths": {"crashed": 1}, "held_s": {"latency": 1.5}}
    two = {
        "created": 4,
        "peak": 1,
        "reclaimed": 1,
        "refused": {"memory": 2},
        "deaths": {"crashed": 1},
        "held_s": {"background": 2},
    }
    assert pool_counts.read(run) is None
    with pytest.raises(StageError), pool_counts.collecting(run):
        pool_counts.write(run.pool_counts, "w1", {"created": 1})
        pool_counts.write(run.pool_counts, "w1", one)
        pool_counts.write(run.pool_counts, "w2", two)
        pool_counts.write(run.pool_counts, "w3", None)
        raise StageError("it failed later")
    assert not run.pool_counts.exists()
    counts = pool_counts.read(run)
    assert counts == {
        "created": 7, "peak": 3, "reclaimed": 1, "refused": {"memory": 2}, "deaths": {"crashed": 2},
        "held_s": {"latency": 1.5, "background": 2},
    }  # fmt: skip
    assert sections(run)["episodes"].note.splitlines()[-1] == (
        "sandboxes since the rollout was last started: 7 created; at most 3 at once; "
        "held 2 s (background), 1.5 s (latency); "
        "deaths: crashed 2; refused: memory 2; reclaimed: 1"
    )
