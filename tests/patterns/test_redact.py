"""Redaction: the labelled texts, and the properties that every text must keep."""

import json
import re
import time
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipelines.redact import PLACEHOLDER, Redactor, redact, redact_session
from schemas.session import Message, Session, ToolCall, ToolSpec

LABELS = yaml.safe_load((Path(__file__).parent / "redact_labels.yaml").read_text(encoding="utf-8"))
PLANTED = json.loads((Path(__file__).parents[2] / "data" / "planted.json").read_text(encoding="utf-8"))


def normal(kind: str, value: str) -> tuple[str, str]:
    return kind, re.sub(r"[\s\-()]", "", value).lower()


def found_in(text: str) -> set[tuple[str, str]]:
    redactor = Redactor()
    redactor.redact(text)
    return set(redactor.found)


def test_recall_and_precision_on_labelled_texts() -> None:
    right = wrong = missed = 0
    misses = []
    for row in LABELS:
        want = {normal(kind, value) for kind, value in row.get("finds", [])}
        got = found_in(row["text"])
        right, wrong, missed = right + len(want & got), wrong + len(got - want), missed + len(want - got)
        if want != got:
            misses.append((row["text"], want ^ got))
    assert sum("finds" in row for row in LABELS) >= 55 and sum("finds" not in row for row in LABELS) >= 35
    assert right / (right + missed) >= 0.98, misses
    assert right / (right + wrong) >= 0.95, misses


def test_every_key_form_of_the_scanner_is_found() -> None:
    hexes = "0123456789abcdef0123456789abcdef"
    samples = [
        "AKC" + "a1" * 20,
        "AKIAFAKEFAKEFAKEFAKE",
        "AccountKey=" + "a1" * 42 + "abc=",
        "MTk4NjIyNDgzNDcxOTI1MjQ4.Cl2FMQ.ZnCjm1XVW7vRze4b7Cq4se7kKWs",
        "gho_" + "a1" * 18,
        "glrt-" + "a1" * 10,
        hexes + "-us12",
        "//registry.example/:_authToken=" + "npm_" + "a1" * 18,
        "sk-" + "a1" * 10 + "T3BlbkFJ" + "b2" * 10,
        "pypi-AgEIcHlwaS5vcmc" + "a1" * 40,
        "SG." + "a1" * 11 + "." + "b2" * 21 + "c",
        "xoxp-123456789012-123456789012-abcdefabcdef0123",
        "sq0csp-" + "a1" * 21 + "c",
        "sk_" + "live_" + "a1" * 12,
        "AC" + hexes,
    ]
    for sample in samples:
        assert redact(f"see {sample} there").counts == {"SECRET": 1}, sample


def test_placeholders_are_typed_numbered_and_consistent() -> None:
    redactor = Redactor()
    first = redactor.redact("from ann@example.org to bob@example.org, 10.1.2.3")
    assert first.text == "from [EMAIL_1] to [EMAIL_2], [IP_1]"
    assert first.counts == {"EMAIL": 2, "IP": 1}
    assert redactor.redact("BOB@example.org").text == "[EMAIL_2]"
    assert redactor.redact("card 4111-1111-1111-1111").text == "card [CARD_1]"
    assert redactor.redact("card 4111111111111111").text == "card [CARD_1]"


def test_evidence_in_one_place_redacts_all_places() -> None:
    session = Session(
        session_id="s",
        partner="p",
        format="openai_chat",
        file="a.jsonl",
        position="line 1",
        source_id="ann@example.org/1",
        tools=[ToolSpec(name="login", parameters_json='{"default": "ann@example.org"}')],
        messages=[
            Message(role="user", content="log me in with Barnacle77x"),
            Message(
                role="assistant",
                reasoning="mail ann@example.org",
                tool_calls=[
                    ToolCall(
                        name="login", arguments_json='{"password": "Barnacle77x", "card": 4111111111111111, "n": 5}'
                    )
                ],
            ),
            Message(role="tool", name="login", content="ok for /home/ann", answers_message=1, answers_call=0),
        ],
    )
    redacted = redact_session(session)
    assert redacted.messages[0].content == "log me in with [SECRET_1]"
    assert json.loads(redacted.messages[1].tool_calls[0].arguments_json) == {
        "password": "[SECRET_1]",
        "card": "[CARD_1]",
        "n": 5,
    }
    assert redacted.messages[2].content == "ok for [HOME_1]"
    assert redacted.source_id == "[EMAIL_1]/1"
    text = redacted.model_dump_json()
    assert "ann@example.org" not in text and "Barnacle" not in text
    assert redacted.session_id == session.session_id and redacted.messages[2].answers_message == 1
    assert redact_session(redacted) == redacted


def test_hostile_text_takes_linear_time() -> None:
    n = 200_000
    units = [
        "eyJ",
        "sk-",
        "://a:",
        "a@",
        "1 ",
        "1-",
        "AB12 ",
        ":",
        "a.",
        "token=",
        "password: '",
        "-----BEGIN PRIVATE KEY-----",
    ]
    units += [
        "xoxb-1-",
        "T3BlbkFJ sk-",
        "//:_authToken=",
        "/home/",
        "\\",
        "1.1.1.",
        "aws key '",
        "BSN 1",
        "glpat-",
        "AKC",
        '"a1B',
    ]
    for unit in units:
        started = time.process_time()
        redact(unit * (n // len(unit)))
        assert time.process_time() - started < 5, unit


PIECES = st.sampled_from(
    [row["text"] for row in LABELS]
    + [p["value"] for p in PLANTED]
    + [
        "[EMAIL_1]",
        "[SECRET_12]",
        "password=",
        '"token": "',
        "\\n",
        "\n",
        "://",
        "@",
        ".",
        ":",
        "-",
        " ",
        "+",
        "/home/",
        "7",
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=12)), max_size=8).map("".join)


@given(TEXTS)
def test_redacting_redacted_text_changes_nothing(text: str) -> None:
    once = redact(text)
    again = redact(once.text)
    assert again.text == once.text and again.counts == {}


@given(TEXTS, st.sampled_from(PLANTED))
def test_planted_values_with_their_cue_never_survive(text: str, planted: dict[str, str]) -> None:
    cue = {"national_id": "BSN ", "secret": "password=", "phone": "phone: "}.get(planted["kind"], "")
    if planted["name"] in ("private_key_line", "url_password", "aws_secret"):
        return  # these need their own surroundings; the demo logs have them
    redactor = Redactor()
    out = redactor.everywhere(redactor.redact(f"{text}\n{cue}{planted['value']} ").text)
    assert planted["value"] not in out


@given(st.text(max_size=200))
def test_counts_agree_with_the_placeholders_written(text: str) -> None:
    out = redact(text)
    written = len(PLACEHOLDER.findall(out.text)) - len(PLACEHOLDER.findall(text))
    assert sum(out.counts.values()) >= written
    assert (out.text == text) == (not out.counts)
