"""Texts of tasks, composed from independent pieces in templates. Every task family calls it.

A wording template is a list of sections. A section starts with `[piece style style ...]`; each line below it is one
variant, `-` stands for nothing and `\\n` for a line break. A family has `wording.j2` (openers, closings, shapes of
results, thoughts) and one template per kind (requests, details).
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from prompts import render
from schemas.ids import derive_seed

Style = Literal["terse", "vague", "formal", "context"]
STYLES: tuple[Style, ...] = get_args(Style)
PIECES = ("opener", "request", "detail", "closing")
_HEADING = re.compile(r"\[([a-z_0-9]+(?: [a-z_0-9]+)*)\]")


@dataclass(frozen=True)
class Wording:
    """An instruction, and the name of the pieces it was composed of."""

    wording_id: str
    style: Style
    text: str


def sections(template: str, values: Mapping[str, object]) -> dict[str, list[str]]:
    """Variants by `piece.style` (or `piece` where a heading names no style) of a rendered template."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in render(template, **values).splitlines():
        heading = _HEADING.fullmatch(line.strip())
        if heading:
            piece, *styles = heading[1].split(" ")
            current = []
            found.update({f"{piece}.{style}": current for style in styles} if styles else {piece: current})
        elif line.strip():
            current.append("" if line.strip() == "-" else line.strip().replace("\\n", "\n"))
    return found


def _lines(family: str, kind: str, style: Style, values: Mapping[str, object]) -> dict[str, list[str]]:
    shared = sections(f"environments/{family}/wording", values)
    own = sections(f"environments/{family}/{kind}", values)
    return {piece: own.get(f"{piece}.{style}") or shared[f"{piece}.{style}"] for piece in PIECES}


def shapes(family: str, values: Mapping[str, object]) -> list[str]:
    """Phrases that say how the result is written, for the output format in `values`; empty where a family has none."""
    return sections(f"environments/{family}/wording", {**values, "shape": ""}).get(f"shape.{values['output']}", [""])


def choices(family: str, kind: str, style: Style, values: Mapping[str, object]) -> dict[str, int]:
    """How many variants each piece has."""
    counts = {p: len(v) for p, v in _lines(family, kind, style, {**values, "shape": ""}).items()}
    # A vague instruction does not say the shape: two names for one text could end up in both splits.
    return {**counts, "shape": 1 if style == "vague" else len(shapes(family, values))}


def compose(family: str, kind: str, style: Style, picks: Mapping[str, int], values: Mapping[str, object]) -> Wording:
    """The instruction made of the picked variants. A missing variable raises jinja2.UndefinedError."""
    shape = shapes(family, values)[picks["shape"]]
    lines = _lines(family, kind, style, {**values, "shape": shape})
    text = " ".join(chosen for piece in PIECES if (chosen := lines[piece][picks[piece]]))
    name = "-".join(f"{piece[0]}{picks[piece]}" for piece in (*PIECES, "shape"))
    return Wording(f"{family}/{kind}:{style}:{name}", style, re.sub(r" *\n *", "\n", text).strip())


def pick(rng: random.Random, family: str, kind: str, style: Style, values: Mapping[str, object]) -> Wording:
    """A wording drawn by `rng`."""
    counts = choices(family, kind, style, values)
    return compose(family, kind, style, {piece: rng.randrange(counts[piece]) for piece in counts}, values)


def notes(rng: random.Random, family: str, kind: str, values: Mapping[str, object]) -> str:
    """The file a vague instruction points to: the formal request and details, under a heading."""
    lines = _lines(family, kind, "formal", {**values, "shape": rng.choice(shapes(family, values))})
    body = {"request": rng.choice(lines["request"]), "detail": rng.choice(lines["detail"])}
    return render("environments/notes", variant=rng.randrange(3), **body).strip() + "\n"


def thought(rng: random.Random, family: str, key: str, values: Mapping[str, object]) -> str:
    """A thought for one blueprint step."""
    return rng.choice(sections(f"environments/{family}/thoughts", values)[key])


def split_of(wording_id: str, eval_share: float) -> Literal["train", "eval"]:
    """`eval` for a fixed share of wordings, decided by the wording alone."""
    return "eval" if derive_seed("wording", wording_id) % 10_000 < eval_share * 10_000 else "train"
