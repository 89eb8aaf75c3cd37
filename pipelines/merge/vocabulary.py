"""One vocabulary for models with different tokenizers: which row of each embedding every output token has.

`plan` calls it; the streaming reads the rows and fills those of missing tokens by the recipe's `missing_token`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import MergeError
from schemas.merge import MergeRecipe


@dataclass(frozen=True)
class Vocabulary:
    """Rows of the merged embedding.

    `rows[folder][i]`: the row in that model's embedding of output token i, int64 [size]; -1: the model lacks it, but
    another one has it. `own[folder]`: the rows of all tokens of that model, int64. `tokens`: id by token; rows
    without a token are the padding of the first model.
    """

    size: int
    rows: dict[Path, npt.NDArray[np.int64]]
    own: dict[Path, npt.NDArray[np.int64]]
    tokenizer_json: bytes
    tokens: dict[str, int]


def reconcile(recipe: MergeRecipe, folders: Sequence[Path], sizes: Sequence[int]) -> Vocabulary | None:
    """The vocabulary of the result; None when the recipe says that all are the same.

    `folders`: the base, else the first model, before the others; `sizes`: rows of their embeddings. `base` keeps the
    tokenizer of the first as it is. `union` keeps its tokens and ids, and adds the tokens that only others have, in
    order of model and id, into the first's padding and beyond. Added tokens of the others keep their flags (special and
    so on), so text encodes to them. The merges of two BPE tokenizers cannot be united: ordinary tokens of the others
    get an id and no merges. The model can say them and they decode, and text encodes as the first tokenizer did. (With
    `ignore_merges`, a word that is a token as a whole becomes that token.)

    Raises MergeError, naming file and field, for a tokenizer that is missing or broken, and for a token without a row
    in any model.
    """
    if recipe.vocabulary == "same":
        return None
    read = {folder: _read(folder / "tokenizer.json") for folder in folders}
    first = read[folders[0]]
    tokens, data = dict(first.ids), first.file.read_bytes()
    if recipe.vocabulary == "union":
        others = [read[folder] for folder in folders[1:]]
        after = max(tokens.values(), default=-1) + 1
        for token in (token for other in others for token in sorted(other.ids, key=other.ids.__getitem__)):
            if token not in tokens:
                tokens[token], after = after, after + 1
        if len(tokens) > len(first.ids):
            data = _united(first, others, tokens)
    size = max(sizes[0], max(tokens.values(), default=-1) + 1)
    rows = {f: _rows(read[f].ids, tokens, size, n) for f, n in zip(folders, sizes, strict=True)}
    first_rows = rows[folders[0]]
    padding = np.ones(size, dtype=bool)
    padding[list(tokens.values())] = False
    padding[sizes[0] :] = False
    first_rows[padding] = np.flatnonzero(padding)
    homeless = np.max(list(rows.values()), axis=0) < 0
    for token, i in sorted(tokens.items(), key=lambda item: item[1]):
        if homeless[i]:
            raise MergeError(f"{first.file}: token {token!r} ({i}) has no row in the embedding of any model")
    if homeless.any():
        raise MergeError(
            f"{first.file}: id {homeless.argmax()} is below the largest, but no token has it and no embedding a row"
        )
    own = {folder: np.array(sorted(tokenizer.ids.values()), dtype=np.int64) for folder, tokenizer in read.items()}
    return Vocabulary(size, rows, own, data, tokens)


@dataclass(frozen=True)
class _Tokenizer:
    """A tokenizer.json: all of it, ids by token, and its added tokens by content."""

    file: Path
    whole: dict[str, Any]
    ids: dict[str, int]
    added: dict[str, dict[str, Any]]


def _rows(own: dict[str, int], tokens: dict[str, int], size: int, embedded: int) -> npt.NDArray[np.int64]:
    rows = np.full(size, -1, dtype=np.int64)
    for token, i in tokens.items():
        if (row := own.get(token, -1)) < embedded:
            rows[i] = row
    return rows


def _united(first: _Tokenizer, others: Sequence[_Tokenizer], tokens: dict[str, int]) -> bytes:
    """The first's tokenizer.json with all `tokens`.

    The tokenizers library takes an added token's id from the model's vocabulary, and counts them anew when it is not
    there: therefore all stand there.
    """
    model = first.whole["model"]
    if not isinstance(model["vocab"], dict):
        raise MergeError(f"{first.file}: model.vocab: a vocabulary of scored pieces cannot be united; use base")
    donors: dict[str, dict[str, Any]] = {}
    for other in reversed(others):
        donors |= other.added
    new = sorted(donors.keys() - first.ids.keys(), key=tokens.__getitem__)
    added = [*first.added.values(), *(donors[token] | {"id": tokens[token]} for token in new)]
    whole = first.whole | {"model": model | {"vocab": tokens}, "added_tokens": added}
    return json.dumps(whole, ensure_ascii=False).encode()


def _read(file: Path) -> _Tokenizer:
    try:
        whole = json.loads(file.read_bytes())
    except OSError as error:
        raise MergeError(f"{file}: cannot be read: {error.strerror}; vocabularies are united by it") from error
    except (ValueError, RecursionError) as error:
        raise MergeError(f"{file}: not JSON: {error}") from error
    model = whole.get("model") if isinstance(whole, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list) and all(isinstance(p, list) and p and isinstance(p[0], str) for p in vocabulary):
        ids: dict[str, Any] = {piece[0]: i for i, piece in enumerate(vocabulary)}
    elif isinstance(vocabulary, dict):
        ids = dict(vocabulary)
    else:
        raise MergeError(f"{file}: model.vocab: neither ids by token nor a list of pieces")
    entries = whole.get("added_tokens") or []
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and isinstance(e.get("content"), str) and "id" in e for e in entries
    ):
        raise MergeError(f"{file}: added_tokens: not a list of tokens with content and id")
    added = {entry["content"]: entry for entry in entries}
    ids |= {content: entry["id"] for content, entry in added.items()}
    if wrong := [t for t, i in ids.items() if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < 1 << 31]:
        raise MergeError(f"{file}: the id of token {wrong[0]!r} is not a whole number from 0 up")
    if len(set(ids.values())) < len(ids):
        raise MergeError(f"{file}: two tokens have the same id")
    return _Tokenizer(file, whole, ids, added)
