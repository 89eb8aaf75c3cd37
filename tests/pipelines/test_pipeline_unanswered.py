"""A rollout whose engine does not answer ends with an error, and is made good by the same command later."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
tasks: {per_family: 1}
sandbox: {accept_process_memory_limit: true}
engine: {model: m, url: "http://127.0.0.1:%d/v1"}
rollout: {plays: [{policy: engine, max_episodes: 4, max_turns: 1}]}
"""


class Server(ThreadingHTTPServer):
    """Says 503 until `works`."""

    works = False


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice]} if self.server.works else {"error": "asleep"}).encode()
        self.send_response(200 if self.server.works else 503)
        self.send_header("retry-after", "0.01")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def trajmill(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pipelines.cli", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ, timeout=200)


def test_no_answer_is_an_error_and_is_played_again(tmp_path: Path, server: Server) -> None:
    config, out = tmp_path / "c.yaml", tmp_path / "run"
    config.write_text(CONFIG % server.server_port)
    run = ("run", ROOT / "data" / "usage", "--out", out, "--config", config)

    asleep = trajmill(*run)
    assert asleep.returncode == 2
    assert "no verdict on any episode of policy `engine`: engine_error: " in asleep.stderr
    assert "asleep" in asleep.stderr.splitlines()[-1]
    assert not (out / "episodes").exists()

    server.works = True
    again = trajmill(*run)
    assert again.returncode == 0, again.stderr
    query = "select stop_reason, count(*) n from episodes group by 1"
    assert json.loads(trajmill("sql", out, query, "--format", "json").stdout) == {"stop_reason": "turn_budget", "n": 4}
