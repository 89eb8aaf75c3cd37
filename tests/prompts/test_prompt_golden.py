"""The system prompts word by word. `python tests/prompts/test_prompt_golden.py` writes the golden files anew."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from agents.scaffolds import SCAFFOLDS, scaffold
from agents.swarm.roles import CASTS
from prompts import names, render

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    f"{name}-{part.role}": (name, part)
    for name in SCAFFOLDS
    for cast in CASTS.values()
    for part in cast
    if part.name != "teammate_2"
}


def prompt(case: str) -> str:
    name, part = CASES[case]
    return scaffold(name).system_prompt(render(f"roles/{part.role}", name=part.name), part.tools, 75)


@pytest.mark.parametrize("case", CASES)
def test_the_prompt_is_the_golden_one(case: str) -> None:
    assert prompt(case) == (GOLDEN / f"{case}.txt").read_text()


def test_a_missing_variable_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("team/mail", sender="lead")


def test_every_role_and_tool_has_its_template() -> None:
    roles = {f"roles/{part.role}" for cast in CASTS.values() for part in cast}
    tools = {f"tools/{tool}" for cast in CASTS.values() for part in cast for tool in part.tools}
    assert set(names("roles")) == roles
    assert set(names("tools")) == tools


if __name__ == "__main__":
    for case in CASES:
        (GOLDEN / f"{case}.txt").write_text(prompt(case))
