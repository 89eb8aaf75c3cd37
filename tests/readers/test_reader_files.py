"""Which files are read, whose they are, and rejects for what no reader knows."""

import json
import os

import pytest
from reader_support import read, write

from pipelines.readers import READERS, detect, input_files, partner_of, read_file
from schemas.errors import InputError
from schemas.session import Reject

CHAT = {"client": {"name": "zeta"}, "messages": [{"role": "user", "content": "hi"}]}


def test_input_files_are_sorted_and_links_hidden_and_documents_are_left_out(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "b", root / "a", root / ".git", outside):
        folder.mkdir(parents=True)
    for name in ("b/1.json", "a/2", "a/README.md", "a/.hidden", ".git/config", "z.txt"):
        write(root, b"x", name)
    write(outside, b"secret", "other.json")
    (root / "a" / "link.json").symlink_to(outside / "other.json")
    (root / "linked").symlink_to(outside)
    os.mkfifo(root / "pipe")
    assert [p.relative_to(root).as_posix() for p in input_files(root)] == ["a/2", "b/1.json", "z.txt"]
    assert input_files(root / "z.txt") == [root / "z.txt"]
    with pytest.raises(InputError):
        input_files(root / "nothing")


def test_partner_is_the_folder_unless_the_record_names_one(tmp_path):
    root = tmp_path / "usage"
    (root / "acme" / "x").mkdir(parents=True)
    path = write(root / "acme" / "x", [CHAT], "log.jsonl")
    assert partner_of(path, root) == "acme"
    assert partner_of(root / "log.jsonl", root) == "usage"
    assert partner_of(path, path) == "x"
    assert partner_of(path, root, "beta") == "beta"
    for field, partner in ((None, "acme"), ("client.name", "zeta"), ("client.code", "acme"), ("messages", "acme")):
        session = next(iter(read_file(path, root=root, partner="acme", partner_field=field)))
        assert session.partner == partner
        assert session.file == "acme/x/log.jsonl"


def test_partner_field_of_lines_and_spans(tmp_path):
    claude = {"type": "user", "sessionId": "s", "team": "one", "message": {"role": "user", "content": "hi"}}
    prompt = json.dumps([{"role": "user", "content": "hi"}])
    attributes = {"service.name": "two", "gen_ai.input.messages": prompt}
    otel = {"name": "n", "context": {"trace_id": "t", "span_id": "s"}, "attributes": attributes}
    assert read(tmp_path, [claude], partner_field="team")[0][0].partner == "one"
    assert read(tmp_path, [otel], partner_field="service.name")[0][0].partner == "two"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty_file"),
        (b" \n\n", "empty_file"),
        (b"\x1f\x8b\x08\x00\x00", "unknown_format"),
        (b"# Title\n\nsome text", "unknown_format"),
        (b'{"a": 1}\n', "unknown_format"),
        (b'{"payload": {}, "type": "session_meta"}', "unknown_format"),
        (b"[[[[[", "unknown_format"),
        (b"PAR1" + bytes(range(256)), "unknown_format"),
    ],
)
def test_a_file_of_no_known_format_is_one_reject(tmp_path, content, reason):
    sessions, rejects = read(tmp_path, content)
    assert sessions == []
    assert [(r.reason, r.format, r.file, r.stage) for r in rejects] == [(reason, None, "log", "ingest")]


def test_a_file_that_is_gone_is_one_reject(tmp_path):
    rows = list(read_file(tmp_path / "gone", root=tmp_path, partner="acme"))
    assert [r.reason for r in rows if isinstance(r, Reject)] == ["unreadable"]


def test_ids_are_stable_and_depend_on_place_and_partner(tmp_path):
    first, _ = read(tmp_path, [CHAT, CHAT])
    again, _ = read(tmp_path, [CHAT, CHAT])
    assert [s.session_id for s in first] == [s.session_id for s in again]
    assert len({s.session_id for s in first}) == 2
    other = next(iter(read_file(tmp_path / "log", root=tmp_path, partner="beta")))
    assert other.session_id not in {s.session_id for s in first}


def test_rejects_quote_nothing(tmp_path):
    secret = "hunter2-hunter2"
    broken = json.dumps({"messages": [{"role": secret, "content": secret}], secret: secret})
    _, rejects = read(tmp_path, json.dumps(CHAT) + "\n" + broken + "\n" + broken[:-9] + "\n" + f'"{secret}"\n')
    assert len(rejects) == 3
    assert secret not in "".join(r.model_dump_json() for r in rejects)


def test_readers_keep_their_contract():
    for reader in READERS:
        for value in (None, 1, "x", [], {}, [[]], {"messages": {}}, {"messages": [None]}, {"spans": [[{}]]}):
            assert reader.matches(value) is False
        assert list(reader.read(iter([]))) == []
    assert len({reader.NAME for reader in READERS}) == len(READERS)


def test_detection_does_not_look_at_the_name_nor_past_damage(tmp_path):
    for name in ("log.txt", "log.md", "log"):
        assert detect(write(tmp_path, [CHAT], name)) == "openai_chat"
    assert detect(write(tmp_path, b'{"cut": "x\n' + json.dumps(CHAT).encode())) == "openai_chat"
    long = json.dumps({"id": "x" * 200_000, **CHAT})
    assert detect(write(tmp_path, long)) == "openai_chat"
