"""Configuration from YAML: defaults, overrides, and errors that name file, line and field."""

from pathlib import Path

import pytest

from pipelines.config import load_config
from schemas.errors import ConfigError
from schemas.recipe import RunConfig


def test_no_file_gives_defaults_and_overrides_win(tmp_path: Path) -> None:
    assert load_config() == RunConfig()
    file = tmp_path / "c.yaml"
    file.write_text("seed: 4\nworkers: 3\n")
    assert load_config(file, seed=9, workers=None) == RunConfig(seed=9, workers=3)
    file.write_text("")
    assert load_config(file) == RunConfig()


def test_errors_name_file_line_and_field(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("seed: 1\nrollout:\n  plays:\n    - policy: blueprint\n    - policy: oracle\npattern: {}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{file}:5: rollout.plays.1.policy: ")
    assert lines[1].startswith(f"{file}:6: pattern: ")


@pytest.mark.parametrize(
    ("text", "word"),
    [("a: [", "not YAML"), ("- 1", "list"), ("a: !!python/object/apply:os.getcwd []", "not YAML"), ("1: 2", "1")],
)
def test_what_is_no_configuration(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=word):
        load_config(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        load_config(tmp_path / "none.yaml")


def test_a_wrong_option_is_of_the_command_line() -> None:
    with pytest.raises(ConfigError, match="command line: seed"):
        load_config(seed=-1)


@pytest.mark.parametrize("url", ["http://me:hunter2@host/v1", "http://host/v1?api_key=hunter2"])
def test_a_url_with_a_secret_is_refused_without_repeating_it(tmp_path: Path, url: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"engine:\n  url: {url}\n")
    with pytest.raises(ConfigError, match=r"engine\.url: .*api_key_env") as caught:
        load_config(file)
    assert "hunter2" not in str(caught.value)
    assert RunConfig.model_validate({"engine": {"url": "http://host:1/v1"}}).engine.url == "http://host:1/v1"


@pytest.mark.parametrize("url", ["http://me:hunter2@host:1", "http://host:1/?token=hunter2"])
def test_the_url_of_a_node_with_a_secret_is_refused_too(tmp_path: Path, url: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"sandbox:\n  nodes:\n    - http://host:1\n    - {url}\n")
    with pytest.raises(ConfigError, match=r":4: sandbox\.nodes\.1: .*nodes_token_env") as caught:
        load_config(file)
    assert "hunter2" not in str(caught.value)


def test_the_demo_s_configuration_only_accepts_a_weaker_memory_limit() -> None:
    demo = load_config(Path(__file__).resolve().parents[2] / "data" / "demo.yaml")
    assert demo.sandbox.accept_process_memory_limit
    default = RunConfig()
    accepted = default.sandbox.model_copy(update={"accept_process_memory_limit": True})
    assert demo == default.model_copy(update={"sandbox": accepted})


def test_a_typo_is_told_what_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("tasks: {per_famly: 2}\nzzz: 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value).splitlines() == [
        f"{file}:1: tasks.per_famly: no such field; did you mean per_family?",
        f"{file}:2: zzz: no such field",
    ]


def test_a_field_in_the_wrong_place_is_told_where_it_belongs(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("plays: []\nrollout: {plays: [{policy: scripted, effort: [50]}]}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert sorted(str(caught.value).splitlines()) == [
        f"{file}:1: plays: no such field; did you mean rollout.plays?",
        f"{file}:2: rollout.plays.0.effort: no such field; did you mean efforts?",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sandbox:\n  nodes: ['10.0.0.7:8765']\n", r":2: sandbox\.nodes\.0: a URL begins with http:// or https://$"),
        ("sandbox: {nodes: ['ftp://h']}\n", r"sandbox\.nodes\.0: a URL begins with"),
        ("sandbox: {nodes: ['http://h:99999']}\n", r"sandbox\.nodes\.0: the port of a URL is a number"),
        ("sandbox: {nodes: ['http://h:0']}\n", r"sandbox\.nodes\.0: the port"),
        ("engine: {url: 'http:///v1'}\n", r"engine\.url: a URL names a host$"),
        ("engine: {url: 'localhost:8000/v1'}\n", r"engine\.url: a URL begins with"),
        ("sandbox: {lifetime_s: .inf}\n", r":1: sandbox\.lifetime_s: Input should be a finite number$"),
        ("sandbox: {lifetime_s: 900}\n", r":1: sandbox\.lifetime_s: below 1200"),
        (
            "rollout:\n  plays:\n    - {policy: engine, branch_after: 2}\n",
            r":3: rollout\.plays\.0: branch_after needs repeats above 1",
        ),
    ],
)
def test_values_that_no_stage_could_use(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_config(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "tasks:\n  families: [table_work, chess]\n",
            r":2: tasks\.families\.1: no family 'chess'; there are table_work",
        ),
        ("tasks: {families: []}\n", "tasks.families: none; there are"),
        ("rollout: {plays: [{policy: scripted, scaffolds: [json]}]}\n", r"scaffolds\.0: no scaffold 'json'"),
        ("engine: {model: nowhere}\n", r":1: engine\.model: model 'nowhere' is neither"),
    ],
)
def test_names_that_no_stage_would_find(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_config(file)
