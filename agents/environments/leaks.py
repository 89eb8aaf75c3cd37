"""Whether an agent can see the answer before it has worked. Called by the families while building and by admission."""

import base64
from collections.abc import Iterable

from schemas.task import FileSpec


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def visible_answers(instruction: str, workspace: Iterable[FileSpec], answer: Iterable[str]) -> list[str]:
    """The answers that stand in the instruction, in a path or in a file; runs of white space count as one space."""
    texts = [instruction]
    for spec in workspace:
        content = (
            base64.b64decode(spec.content).decode("utf-8", "replace") if spec.encoding == "base64" else spec.content
        )
        texts += [spec.path, content]
    haystacks = [_squeeze(text) for text in texts]
    return [given for given in answer if any(_squeeze(given) in hay for hay in haystacks)]
