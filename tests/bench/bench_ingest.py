"""Reading logs into sessions against a bare orjson parse of the same bytes: MB per second of CPU time.

The logs are generated (20 MB each, in the proportions of real ones), so that the figures can be had anywhere. `peer` is
`orjson.loads` of every line, or of the whole array: it builds no session, so it is the floor and not a rival.
"""

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pipelines.readers import read_file
from schemas.session import Session

BYTES = 20_000_000
BAR = 10.0
"""MB/s that a core must do."""
ROUNDS = 3
WORDS = tuple(
    "the order was shipped on monday and a refund of 12.50 is open see src/app/main.py line 40 error".split()  # noqa: SIM905
)


def prose(rng: random.Random, words: int) -> str:
    """Text of about `words` words."""
    return " ".join(rng.choices(WORDS, k=max(1, int(rng.expovariate(1 / words)))))


def chat(rng: random.Random) -> dict[str, Any]:
    """A tau-bench-like record: policy, talk, calls with JSON arguments, results."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": prose(rng, 900)}]
    for i in range(8):
        arguments = json.dumps({"user_id": prose(rng, 2), "items": [1, 2, 3]})
        call = {"id": f"call_{i % 3}", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        messages += [
            {"role": "user", "content": prose(rng, 20)},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{i % 3}", "name": "look_up", "content": prose(rng, 150)},
            {"role": "assistant", "content": prose(rng, 40)},
        ]
    return {"task_id": rng.randrange(50), "trial": 0, "reward": 1.0, "messages": messages}


def responses(rng: random.Random) -> dict[str, Any]:
    """A nemo_gym-like rollout."""
    output: list[dict[str, Any]] = []
    for i in range(12):
        text = [{"type": "output_text", "text": prose(rng, 40), "annotations": []}]
        output += [
            {"type": "message", "role": "assistant", "content": text, "id": f"m{i}", "status": "completed"},
            {"type": "function_call", "call_id": f"c{i}", "name": "bash", "arguments": '{"command": "ls -la"}'},
            {"type": "function_call_output", "call_id": f"c{i}", "output": prose(rng, 400)},
        ]
    request = {"input": [{"role": "user", "content": prose(rng, 300)}], "tools": []}
    return {"responses_create_params": request, "response": {"output": output, "model": "m"}, "reward": 0.0}


def claude(rng: random.Random) -> dict[str, Any]:
    """A line of a Claude Code session."""
    n = rng.randrange(10**9)
    base = {"uuid": str(n), "parentUuid": None, "isSidechain": False, "sessionId": f"s{n % 400}", "cwd": "/w"}
    time_ = {"timestamp": "2026-01-01T00:00:00.000Z"}
    if n % 2:
        use = {"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {"command": prose(rng, 10)}}
        content = [{"type": "text", "text": prose(rng, 30)}, use]
        return {
            "type": "assistant",
            **base,
            **time_,
            "message": {"id": f"m{n}", "role": "assistant", "content": content},
        }
    content = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": prose(rng, 250)}]
    return {"type": "user", **base, **time_, "message": {"role": "user", "content": content}}


def sharegpt(rng: random.Random) -> dict[str, Any]:
    """A glaive-like record."""
    senders = ("human", "function_call", "observation", "gpt") * 2
    call = '{"name": "f", "arguments": {"a": 1}}'
    said = [{"from": s, "value": call if s == "function_call" else prose(rng, 40)} for s in senders]
    return {"conversations": said, "tools": "[]"}


def records(make: Callable[[random.Random], dict[str, Any]]) -> Iterator[bytes]:
    """Records worth `BYTES`, from a fixed seed."""
    rng, left = random.Random(7), BYTES
    while left > 0:
        record = orjson.dumps(make(rng))
        left -= len(record)
        yield record


def best(work: Callable[[], int]) -> float:
    """CPU seconds of the fastest of `ROUNDS` runs."""
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        if not work():
            raise SystemExit("nothing was read")
        times.append(time.process_time() - begin)
    return min(times)


def main() -> None:
    """One JSON line per format."""
    cases = [
        ("openai_chat lines", chat, "lines"),
        ("openai_chat array", chat, "array"),
        ("openai_responses lines", responses, "lines"),
        ("claude_code lines", claude, "lines"),
        ("sharegpt array", sharegpt, "array"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, make, layout in cases:
            root = Path(folder)
            path = root / "log"
            made = list(records(make))
            path.write_bytes(b"\n".join(made) if layout == "lines" else b"[" + b",\n".join(made) + b"]")
            size = path.stat().st_size / 1e6

            def ours(path: Path = path, root: Path = root) -> int:
                return sum(isinstance(row, Session) for row in read_file(path, root=root, partner="bench"))

            def peer(path: Path = path, layout: str = layout) -> int:
                if layout == "array":
                    return len(orjson.loads(path.read_bytes()))
                with path.open("rb") as file:
                    return sum(bool(orjson.loads(line)) for line in file)

            speed, floor = size / best(ours), size / best(peer)
            figure = {
                "figure": f"ingest {name}", "ours": round(speed, 1), "against": round(floor, 1), "peer": "orjson.loads",
                "ratio": round(speed / floor, 3), "unit": "MB/s of CPU time", "bar": BAR, "holds": speed >= BAR,
            }  # fmt: skip
            print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
