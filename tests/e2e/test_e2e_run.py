"""The whole line on the demo logs, at a small size: every stage, shards as trainers load them, what must not leak."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import datasets
import duckdb
import nbformat
import pytest
from nbclient import NotebookClient
from small_run import LOGS, ROOT, SMALL, sql, trajmill

PLANTED = ROOT / "data" / "planted.json"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("e2e")
    (folder / "small.yaml").write_text(SMALL)
    done = trajmill("run", str(LOGS), "--out", str(folder / "run"), "--config", str(folder / "small.yaml"))
    (folder / "table.txt").write_text(done.stdout)
    return folder / "run"


def test_every_blueprint_episode_passes_and_doing_nothing_never_does(finished: Path) -> None:
    rows = sql(finished, "select policy, layout, count(*) n, avg(passed::int) rate from episodes group by all")
    rates = {(r["policy"], r["layout"]): r["rate"] for r in rows}
    assert {k: v for k, v in rates.items() if k[0] == "scripted"} == {("scripted", "solo"): 0, ("scripted", "team"): 0}
    assert all(v >= 0.95 for k, v in rates.items() if k[0] == "blueprint"), rows


def test_the_run_ends_with_a_table(finished: Path) -> None:
    text = (finished.parent / "table.txt").read_text()
    for word in ("sessions", "patterns", "tasks", "blueprint", "scripted", "samples", "shards"):
        assert word in text.lower()


def test_trainers_load_the_shards(finished: Path) -> None:
    shards = finished / "shards"
    manifest = json.loads((shards / "manifest.json").read_text())
    text = datasets.load_dataset("parquet", data_files=str(shards / "text" / "*.parquet"), split="train")
    tokens = datasets.load_dataset("parquet", data_files=str(shards / "tokens" / "*.parquet"), split="train")
    assert sorted(text["sample_id"]) == sorted(tokens["sample_id"])
    assert text.num_rows == sum(f["rows"] for f in manifest["files"] if f["config"] == "text") > 0
    assert {m["role"] for m in text[0]["messages"]} == {"system", "user", "assistant"}
    for row in tokens:
        assert len(row["input_ids"]) == len(row["loss_mask"]) == len(row["logprobs"])
        assert any(row["loss_mask"]) and not all(row["loss_mask"])
    n = duckdb.sql(f"select count(*) from '{shards}/tokens/*.parquet'").fetchall()
    assert n == [(tokens.num_rows,)]


def test_a_slip_is_in_the_context_and_not_in_the_loss(finished: Path) -> None:
    rows = sql(
        finished,
        "select trained[turn.message + 1] as trained from (select trained, unnest(turns) as turn from samples "
        "where policy = 'blueprint') where turn.slip",
    )
    assert rows and not any(r["trained"] for r in rows)


def test_no_sample_of_an_evaluation_wording_is_in_a_shard(finished: Path) -> None:
    assert sql(finished, "select count(*) n from text join tasks using (task_id) where split = 'eval'") == [{"n": 0}]


def test_what_was_planted_is_in_the_private_store_alone(finished: Path) -> None:
    planted = {item["name"]: spellings(item["value"]) for item in json.loads(PLANTED.read_text())}
    private = finished / "sessions"
    assert private.stat().st_mode & 0o077 == 0
    stored = " ".join(texts(path) for path in private.iterdir())
    assert {name for name, forms in planted.items() if any(form in stored for form in forms)} == set(planted)
    for path in sorted(finished.rglob("*")):
        if path.is_file() and private not in path.parents:
            seen = texts(path)
            found = [name for name, forms in planted.items() if any(form in seen for form in forms)]
            assert not found, f"{path.relative_to(finished)} holds {found}"


def spellings(value: str) -> set[str]:
    """The value as it is, and as a JSON string holds it, once and twice."""
    once = json.dumps(value, ensure_ascii=False)[1:-1]
    return {value, once, json.dumps(once, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1]}


def texts(path: Path) -> str:
    """All text in a file: the rows of a Parquet file as JSON, any other file as it is."""
    if path.suffix != ".parquet":
        return path.read_bytes().decode("utf-8", "replace")
    return "\n".join(row[0] for row in duckdb.sql(f"select to_json(t)::varchar from '{path}' t").fetchall())


def test_the_session_store_may_be_removed(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    shutil.rmtree(copy / "sessions")
    trajmill("score", str(copy))
    trajmill("shards", str(copy))
    assert sql(copy, "select count(*) n from sessions") == [{"n": 0}]


def test_one_trajectory_is_shown(finished: Path) -> None:
    (row,) = sql(finished, "select episode_id from episodes where layout = 'team' and policy = 'blueprint' limit 1")
    shown = trajmill("show", str(finished), row["episode_id"]).stdout
    assert "synthetic" in shown and "reviewer" in shown and "submitted" in shown


def test_the_notebook_runs_on_it(finished: Path) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "01_a_run.ipynb", as_version=4)
    env = os.environ | {"TRAJMILL_RUN": str(finished), "PYTHONPATH": str(ROOT)}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": ROOT}})
    client.execute(env=env)
    html = [
        o["data"]["text/html"] for c in notebook.cells for o in c.get("outputs", []) if "text/html" in o.get("data", {})
    ]
    assert any("Synthetic" in h and "reviewer" in h for h in html)


def test_the_same_command_again_does_nothing(finished: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*.parquet")}
    trajmill("run", str(LOGS), "--out", str(finished), "--config", str(finished.parent / "small.yaml"))
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*.parquet")} == before


def test_an_error_is_one_line(tmp_path: Path) -> None:
    done = trajmill("run", str(tmp_path / "absent"), "--out", str(tmp_path / "out"), check=False)
    assert done.returncode == 2
    assert "absent" in done.stderr and "Traceback" not in done.stderr


def test_no_process_is_left(finished: Path) -> None:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(finished.parent) not in listed
