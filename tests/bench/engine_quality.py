"""Engine bench: what compressed weights, keys and values cost in quality, on a fixed text of 625 tokens.

Every token is predicted as the engine would: chunks of 100 tokens, keys and values through the blocks.
"""

import math
from pathlib import Path

import torch
from engine_measure import load_model
from lines import say, skip
from torch.nn.functional import cross_entropy

from agents.engine import files
from agents.engine.accounting import KVFormat
from agents.engine.attention import Span
from agents.engine.models.llama import Llama, Precision
from agents.engine.sequence import BLOCK
from agents.engine.tokenizer import load_tokenizer
from schemas.errors import ConfigError

TEXT = Path(__file__).parents[1] / "engine" / "fixed_text.txt"
CHUNK = 100


def quality() -> None:
    """Perplexity and argmax against exact weights, or exact keys and values; bytes per token of the buffers."""
    ids = load_tokenizer(files.SMOLLM2).encode(TEXT.read_text(encoding="utf-8").replace("\n", " ").strip())
    exact, _ = _logits(ids, "fp32", "fp32")
    fast, fast_bytes = _logits(ids, "fp16", "fp32")
    _compare("weights_fp16", fast, "fp32 weights", exact, ids, 1.01, 0.99)
    gates: dict[KVFormat, tuple[float, float]] = {"int8": (1.005, 0.98), "k8v4": (1.01, 0.95)}
    for kv, (loss, agreement) in gates.items():
        found, held = _logits(ids, "fp16", kv)
        _compare(f"kv_{kv}", found, "fp32 keys and values, same weights", fast, ids, loss, agreement)
        peer = "fp32 keys and values"
        say(f"kv_{kv}_bytes", held, peer, fast_bytes, "bytes per token, of the buffer", None)
    try:
        int8, _ = _logits(ids, "int8", "fp32")
    except (ConfigError, ImportError) as error:
        skip("weights_int8", str(error))
        return
    _compare("weights_int8", int8, "fp32 weights", exact, ids, 1.01, 0.98)


def _logits(ids: list[int], precision: Precision, kv: KVFormat) -> tuple[torch.Tensor, float]:
    """Logits at every token, and bytes that a token's keys and values take."""
    model = load_model(precision, kv)
    return logits_of(model, ids)


def logits_of(model: Llama, ids: list[int]) -> tuple[torch.Tensor, float]:
    """The same of a loaded model."""
    table = list(range(-(-len(ids) // BLOCK)))
    cache = model.new_cache(len(table))
    rows = []
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        rows.append(model.logits(model.hidden(part, [Span(table, start, len(part))], cache)))
    return torch.cat(rows), cache.full.bytes_per_token


def _compare(
    figure: str, found: torch.Tensor, peer: str, exact: torch.Tensor, ids: list[int], loss: float, agreement: float
) -> None:
    ours, theirs = _perplexity(found, ids), _perplexity(exact, ids)
    say(f"{figure}_perplexity", ours, peer, theirs, "perplexity", loss)
    same = float((found.argmax(-1) == exact.argmax(-1)).float().mean())
    say(f"{figure}_argmax", same, peer, 1.0, "share of equal choices", agreement, at_least=True)


def _perplexity(logits: torch.Tensor, ids: list[int]) -> float:
    return math.exp(cross_entropy(logits[:-1], torch.tensor(ids[1:])))
