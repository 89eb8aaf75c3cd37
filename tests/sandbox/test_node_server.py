"""The node agent against hostile requests: a reason and a 4xx, never a traceback, never somebody else's sandbox."""

import asyncio
import base64
import contextlib
import dataclasses
import json
import time

import httpx
import pytest
from node_help import ROOMY, SMALL, SlowFactory, SlowSandbox, node, until

from agents.sandbox.base import Limits
from agents.sandbox.node import wire
from agents.sandbox.node.guard import Impatient
from agents.sandbox.node.server import LARGE, LARGE_AT_ONCE

LIMITS = dataclasses.asdict(SMALL)
LEASE = {"limits": LIMITS, "priority": "latency"}
NOTHING = {"leases": [], "snapshots": []}
HEADERS = b"POST /lease HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n"


def play(body, **options):
    """Run `body(client)` against one node agent, with a plain HTTP client."""

    async def main():
        async with node(**options) as url, httpx.AsyncClient(base_url=url) as client:
            return await body(client)

    return asyncio.run(main())


async def lease(client) -> str:
    return (await client.post("/lease", json=LEASE)).json()["lease"]


def run(name, **changes) -> dict:
    command = base64.b64encode(b"echo hi").decode()
    whole = {
        "lease": name,
        "command": command,
        "timeout_s": None,
        "stdin": "",
        "cwd": "L3dvcms=",
        "merge_stderr": False,
    }
    return whole | changes


def said(response, status, kind, word="") -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json()["kind"] == kind and word in response.json()["message"]
    assert "Traceback" not in response.text and 'File "' not in response.text


BAD_BODIES = {
    "no json": b"{",
    "empty": b"",
    "not an object": b"[]",
    "deep": b"[" * 100_000,
    "not utf-8": b'{"limits": "\xff"}',
    "other field": json.dumps(LEASE | {"x": 1}).encode(),
    "priority": json.dumps(LEASE | {"priority": "urgent"}).encode(),
    "text for a number": json.dumps(LEASE | {"limits": LIMITS | {"memory_mb": "64"}}).encode(),
    "negative": json.dumps(LEASE | {"limits": LIMITS | {"memory_mb": -1}}).encode(),
    "zero": json.dumps(LEASE | {"limits": LIMITS | {"processes": 0}}).encode(),
    "huge": json.dumps(LEASE | {"limits": LIMITS | {"disk_mb": 10**40}}).encode(),
    "nan": json.dumps(LEASE | {"limits": LIMITS | {"command_s": float("nan")}}).encode(),
    "endless": json.dumps(LEASE | {"limits": LIMITS | {"command_s": float("inf")}}).encode(),
    "output": json.dumps(LEASE | {"limits": LIMITS | {"output_bytes": 2**30}}).encode(),
}


def test_bodies_that_are_not_what_they_should_be():
    async def body(client):
        headers = {"content-type": "application/json"}
        for name, content in BAD_BODIES.items():
            response = await client.post("/lease", content=content, headers=headers)
            assert response.status_code == 400, (name, response.text)
            said(response, 400, "ValueError")
            assert len(response.text) < 500
        name = await lease(client)
        for bad in (
            {"command": "$$$"},
            {"command": 3},
            {"timeout_s": -1},
            {"stdin": "ä"},
            {"cwd": None},
            {"merge_stderr": 1},
        ):
            said(await client.post("/run", json=run(name, **bad)), 400, "ValueError")
        # Bytes that are no text of ours, and what only the sandbox can refuse.
        said(await client.post("/run", json=run(name, cwd="_w==")), 400, "ValueError")
        files = [{"path": base64.b64encode(b"../x").decode(), "data": ""}]
        said(await client.post("/put", json={"lease": name, "files": files}), 400, "ValueError", "below")
        assert (await client.post("/run", json=run(name))).status_code == 200

    play(body)


def test_other_methods_paths_and_kinds_of_content():
    async def body(client):
        said(await client.get("/lease"), 405, "ValueError")
        said(await client.post("/nothing", json={}), 404, "ValueError")
        said(
            await client.post("/lease", content=json.dumps(LEASE), headers={"content-type": "text/plain"}),
            415,
            "ValueError",
        )
        said(await client.post("/lease", content=json.dumps(LEASE)), 415, "ValueError")

    play(body)


def test_nobody_gets_anothers_sandbox():
    async def body(client):
        names = {await lease(client) for _ in range(3)}
        assert len(names) == 3 and all(len(name) == 24 for name in names)
        for guess in ("", "0", "x" * 24, "x" * 10**6, next(iter(names))[:-1]):
            for path in ("/run", "/kill_all", "/seal", "/put", "/collect"):
                asked = {"/run": run(guess), "/put": {"files": []}, "/collect": {"paths": []}}.get(path, {})
                response = await client.post(path, json=asked | {"lease": guess})
                usual = 1 <= len(guess) <= 64
                said(response, 404 if usual else 400, "SandboxLost" if usual else "ValueError")
                assert not any(name in response.text for name in names)
        said(
            await client.post("/fork", json={"snapshot": next(iter(names)), "priority": "latency"}), 404, "SandboxLost"
        )
        renewed = (await client.post("/renew", json={"leases": ["no", *names], "snapshots": ["nor"]})).json()
        assert renewed["gone"] == ["no", "nor"]
        assert (await client.post("/close", json={"lease": "no"})).status_code == 200

    play(body)


def test_the_token_comes_first():
    async def body(client):
        for headers in (
            {},
            {"authorization": "Bearer"},
            {"authorization": "Bearer wrong"},
            {"authorization": b"Bearer \xff"},
        ):
            said(await client.post("/lease", content=b"{", headers=headers), 401, "ConfigError", "token")
            said(await client.get("/lease", headers=headers), 401, "ConfigError")
            in_url = await client.post("/renew?token=correct-horse-battery", json=NOTHING, headers=headers)
            said(in_url, 401, "ConfigError")
        right = {"authorization": "Bearer correct-horse-battery"}
        assert (await client.post("/renew", json=NOTHING, headers=right)).status_code == 200

    play(body, token="correct-horse-battery")


def test_a_large_body_is_not_kept():
    async def too_much():
        for _ in range(wire.MAX_BODY // 2**20 + 1):
            yield bytes(2**20)

    async def body(client):
        name, headers = await lease(client), {"content-type": "application/json"}
        response = await client.post("/put", content=too_much(), headers=headers, timeout=60)
        said(response, 413, "SandboxError", str(wire.MAX_BODY))
        big = {"path": "eA==", "data": base64.b64encode(bytes(30 * 2**20)).decode()}
        assert (await client.post("/put", json={"lease": name, "files": [big]}, timeout=60)).status_code == 200
        many = {"lease": name, "paths": [base64.b64encode(b"./" * n + b"x").decode() for n in range(100)]}
        said(await client.post("/collect", json=many, timeout=60), 500, "SandboxError", "too large")

    play(body)


def test_a_body_that_does_not_come():
    async def body(client):
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(HEADERS + b"\r\n{")
        assert b"408" in await reader.readline()
        writer.close()
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(b"\x00\x01 nonsense\r\n\r\n")
        assert b"400" in await reader.readline()
        writer.close()

    play(body, body_s=0.2)


def test_refusals_say_why_and_readings_follow():
    low = dataclasses.replace(ROOMY, memory_mb=600)

    async def body(client):
        response = await client.post("/lease", json=LEASE | {"limits": dataclasses.asdict(Limits(memory_mb=300))})
        said(response, 503, "SandboxRefused", "memory short: 600 free")
        assert response.json()["cause"] == "memory"
        empty = {"live": 0, "queued": 0, "max_live": 4, "memory_free_mb": 88, "cpu_pressure": 0.0}
        assert (await client.post("/renew", json=NOTHING)).json() == {"gone": [], "reading": empty}
        await lease(client)
        assert (await client.post("/renew", json=NOTHING)).json()["reading"] == empty | {"live": 1}

    play(body, signals=lambda: low)


def test_what_the_holder_left_is_ended():
    factory = SlowFactory()

    async def body(client):
        name, before = await lease(client), SlowSandbox.cut
        slow = base64.b64encode(b"sleep 60").decode()
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/run", json=run(name, command=slow), timeout=0.2)
        await until(lambda: SlowSandbox.cut == before + 1)
        busy = asyncio.create_task(client.post("/run", json=run(name, command=slow)))
        await asyncio.sleep(0.05)
        assert (await client.post("/close", json={"lease": name})).status_code == 200
        assert factory.opened[0].closed
        said(await client.post("/run", json=run(name)), 404, "SandboxLost")
        busy.cancel()
        abandoned = await lease(client)
        await until(lambda: factory.opened[1].closed)
        said(await client.post("/run", json=run(abandoned)), 404, "SandboxLost", "reclaimed")

    play(body, factory=factory, ttl_s=0.4)
    assert all(sandbox.closed for sandbox in factory.opened)


def test_the_end_of_the_server_ends_all_sandboxes():
    factory = SlowFactory()

    async def body(client):
        for _ in range(3):
            await lease(client)

    play(body, factory=factory)
    assert [sandbox.closed for sandbox in factory.opened] == [True] * 3


def test_an_error_of_ours_shows_nothing_of_itself():
    class Broken(SlowFactory):
        async def open(self, limits, priority="latency"):
            raise RuntimeError("secret detail")

    async def body(client):
        response = await client.post("/lease", json=LEASE)
        said(response, 500, "SandboxError", "internal error")
        assert "secret" not in response.text

    play(body, factory=Broken())


class Hasty(Impatient):
    """Does not wait long."""

    patience_s = 0.3


def test_connections_without_a_request_end():
    async def body(client):
        host, port = client.base_url.host, client.base_url.port
        assert (await client.post("/renew", json=NOTHING)).status_code == 200
        ends = [await asyncio.open_connection(host, port) for _ in range(20)]
        for number, (reader, writer) in enumerate(ends):
            writer.write((b"", HEADERS, b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")[number % 3])
            if number % 3 == 2:
                await reader.readuntil(b"}")
                writer.write(b"GET")  # half of a second one
        async with asyncio.timeout(5):
            for reader, _ in ends:
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()  # to its end
        for _, writer in ends:
            writer.close()
        name = await lease(client)
        slow = run(name, command=base64.b64encode(b"sleep 0.7").decode())
        assert (await client.post("/run", json=slow)).status_code == 200, "not while an answer is awaited"

    play(body, http=Hasty)


def test_pages_in_browsers_are_not_served():
    async def body(client):
        port = client.base_url.port
        for foreign in ({"origin": "http://evil.example"}, {"origin": "null"}, {"host": "evil.example"}, {"host": ""}):
            said(await client.post("/lease", json=LEASE, headers=foreign), 403, "ValueError")
        assert (await client.options("/lease", headers={"origin": "http://evil"})).status_code == 403
        for name in (f"127.0.0.1:{port}", "localhost", f"[::1]:{port}", "127.0.0.2"):
            assert (await client.post("/renew", json=NOTHING, headers={"host": name})).status_code == 200

    play(body)


def test_a_node_with_a_token_may_have_any_name():
    async def body(client):
        headers = {"authorization": "Bearer correct-horse-battery", "host": "node7.internal:7070"}
        assert (await client.post("/renew", json=NOTHING, headers=headers)).status_code == 200
        said(await client.post("/lease", json=LEASE, headers=headers | {"origin": "http://x"}), 403, "ValueError")

    play(body, token="correct-horse-battery")


def test_a_body_of_very_many_values_is_not_parsed():
    many = b'{"path":"","data":""},' * (20 * 2**20 // 22)
    started = time.process_time()
    with pytest.raises(ValueError, match="more than 100000 values"):
        wire.parse(wire.Put, bytearray(b'{"lease":"a","files":[' + many + b'{"path":"","data":""}]}'))
    assert time.process_time() - started < 0.5
    ids = ", ".join(f'"{n:024}"' for n in range(50_000))
    assert len(wire.parse(wire.Renew, bytearray(f'{{"leases":[{ids}],"snapshots":[]}}'.encode())).leases) == 50_000


def test_few_large_bodies_arrive_at_once_and_small_ones_pass_them():
    async def body(client):
        host, port = client.base_url.host, client.base_url.port
        name, slow = await lease(client), []
        for _ in range(LARGE_AT_ONCE):
            slow.append(await asyncio.open_connection(host, port))
            slow[-1][1].write(HEADERS.replace(b"100\r\n", b"%d\r\n\r\n{" % LARGE))
        big = {"lease": name, "files": [{"path": "eA==", "data": base64.b64encode(bytes(LARGE)).decode()}]}
        waiting = asyncio.create_task(client.post("/put", json=big, timeout=60))
        assert (await client.post("/run", json=run(name))).status_code == 200
        await asyncio.sleep(0.2)
        assert not waiting.done()
        slow.pop()[1].close()
        assert (await waiting).status_code == 200
        for _, writer in slow:
            writer.close()

    play(body)
