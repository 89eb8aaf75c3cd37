"""Deliberate mistakes of the blueprint policy, at the rate that the pattern's errors suggest, harmless by construction.

A slip never changes a file: it reads a path that does not exist, runs a misspelt program, or is a reply that the
scaffold cannot read. What follows it is the right step again, with a thought that says what went wrong.
"""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prompts import render
from schemas.task import Action

SlipKind = Literal["path", "command", "form"]
# One plain program with plain arguments: nothing else of the line can run when its first word is misspelt.
_SIMPLE = re.compile(r"[a-z][a-z0-9_]+ [\w./ '\"=,:-]*")


@dataclass(frozen=True)
class Move:
    """One reply of the blueprint policy. `report` names the team's part it tells about; its text is filled in later."""

    thought: str
    action: Action
    slip: SlipKind | None = None
    report: str | None = None


def _swap(rng: random.Random, word: str) -> str:
    """The word with two different neighbouring letters swapped, or one letter doubled when there are none."""
    places = [i for i in range(len(word) - 1) if word[i] != word[i + 1] and word[i : i + 2].isalpha()]
    if not places:
        return word + word[-1]
    i = rng.choice(places)
    return word[:i] + word[i + 1] + word[i] + word[i + 2 :]


def _path_slip(rng: random.Random, move: Move, paths: Sequence[str]) -> Move:
    command = move.action.arguments_json
    near = [path for path in paths if path in command] or list(paths)
    path = rng.choice(near)
    wrong = next(w for w in iter(lambda: _swap(rng, path), None) if w not in paths)
    return replace(
        move, action=Action(tool="bash", arguments_json=json.dumps({"command": f"cat '{wrong}'"})), slip="path"
    )


def _slip(rng: random.Random, move: Move, paths: Sequence[str]) -> Move:
    kinds: list[SlipKind] = ["form"]
    command = str(json.loads(move.action.arguments_json).get("command", ""))
    if _SIMPLE.fullmatch(command):
        kinds.append("command")
    if any(path.isascii() and "'" not in path and any(c.isalpha() for c in path) for path in paths):
        kinds.append("path")
    kind = rng.choice(kinds)
    if kind == "form":
        return replace(move, slip="form")
    if kind == "command":
        program, _, rest = command.partition(" ")
        wrong = {"command": f"{_swap(rng, program)} {rest}"}
        return replace(move, action=Action(tool="bash", arguments_json=json.dumps(wrong)), slip="command")
    return _path_slip(rng, move, [p for p in paths if p.isascii() and "'" not in p])


def with_slips(
    moves: Sequence[Move],
    *,
    rate: float,
    most: int,
    paths: Sequence[str],
    effort: int,
    rng_at: Callable[[int], random.Random],
) -> list[Move]:
    """The moves with at most `most` slips and their recoveries; from effort 75 on, a recovery looks around first.

    A move, its slip and its recovery draw from `rng_at` of the place where they begin, so that two scripts whose draws
    agree up to a place begin with the same moves.
    """
    result: list[Move] = []
    for move in moves:
        rng = rng_at(len(result))
        work = move.action.tool in ("bash", "read_file", "write_file")
        if work and most > 0 and rng.random() < rate:
            slip = _slip(rng, move, paths)
            result.append(slip)
            most -= 1
            if effort >= 75 and slip.slip == "path" and most > 0:
                look = Action(tool="bash", arguments_json=json.dumps({"command": "find . -type f | sort | head -n 40"}))
                result.append(Move(render("blueprint/look", n=rng.randrange(60)), look))
                most -= 1
            thought = render("blueprint/recover", kind=slip.slip, n=rng.randrange(60), thought=move.thought)
            move = replace(move, thought=thought)  # noqa: PLW2901
        result.append(move)
    return result
