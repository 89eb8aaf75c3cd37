"""Slips change nothing, stay within the budget, and are each followed by the right step."""

import json
import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from agents.swarm.slips import Move, with_slips
from schemas.task import Action


def bash(command: str) -> Action:
    return Action(tool="bash", arguments_json=json.dumps({"command": command}))


COMMANDS = st.sampled_from(
    ["cat a.csv", "rm a.csv", "mv a.csv b.csv", "sort a.csv > b.csv", "wc -l data/x.txt; rm a.csv", "head -n 3 a.csv"]
)
MOVES = st.lists(st.builds(lambda c: Move("So.", bash(c)), COMMANDS), max_size=8)
PATHS = ["a.csv", "data/x.txt", "77"]


def draws(seed: int) -> Callable[[int], random.Random]:
    return lambda place: random.Random(f"{seed} {place}")


@given(moves=MOVES, rate=st.floats(0, 1), most=st.integers(0, 8), effort=st.integers(1, 100), seed=st.integers(0, 99))
def test_the_reference_actions_are_all_there_in_order(moves, rate, most, effort, seed) -> None:
    played = with_slips(moves, rate=rate, most=most, paths=PATHS, effort=effort, rng_at=draws(seed))
    right = [m.action for m in played if m.slip is None and "find . -type f" not in m.action.arguments_json]
    assert right == [m.action for m in moves]
    assert len(played) - len(moves) <= most


@given(moves=MOVES, seed=st.integers(0, 99))
def test_a_slip_never_runs_what_changes_a_file(moves, seed) -> None:
    for move in with_slips(moves, rate=1.0, most=99, paths=PATHS, effort=50, rng_at=draws(seed)):
        command = json.loads(move.action.arguments_json)["command"]
        if move.slip == "path":
            assert command.startswith("cat '")
            assert command[5:-1] not in PATHS
        if move.slip == "command":
            assert not set(";&|><`$\n") & set(command)
            assert command.split()[0] not in ("cat", "rm", "mv", "sort", "wc", "head")


@given(moves=MOVES, seed=st.integers(0, 99))
def test_equal_seeds_slip_alike(moves, seed) -> None:
    runs = [with_slips(moves, rate=0.5, most=5, paths=PATHS, effort=80, rng_at=draws(seed)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_recovery_says_what_went_wrong() -> None:
    played = with_slips(
        [Move("I sort.", bash("sort a.csv"))], rate=1.0, most=1, paths=PATHS, effort=50, rng_at=draws(3)
    )
    assert [m.slip is None for m in played] == [False, True]
    assert played[1].thought.endswith("I sort.")
    assert played[1].thought != "I sort."


@given(moves=MOVES, seed=st.integers(0, 99), other=st.integers(100, 199), branch=st.integers(0, 12))
def test_draws_that_agree_up_to_a_place_begin_alike(moves, seed, other, branch) -> None:
    def mixed(place: int) -> random.Random:
        return draws(seed if place < branch else other)(place)

    facts = {"rate": 0.5, "most": 6, "paths": PATHS, "effort": 80}
    one, two = (with_slips(moves, rng_at=rng_at, **facts) for rng_at in (draws(seed), mixed))
    assert one[:branch] == two[:branch]
    right = [m.action for m in two if m.slip is None and "find . -type f" not in m.action.arguments_json]
    assert right == [m.action for m in moves]
    assert len(two) - len(moves) <= 6
