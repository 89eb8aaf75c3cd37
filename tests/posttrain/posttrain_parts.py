"""A tiny random model that reads and writes the small model's tokens, and what tasks for it are made from."""

import json
from pathlib import Path

from small_llama import write_llama

from agents.engine.tokenizer import load_tokenizer
from agents.environments import errands
from pipelines.posttrain.checkpoint import _CHATML
from schemas.pattern import UsagePattern
from schemas.task import Task

USAGE = Path(__file__).parents[2] / "data" / "usage"
PATTERN = UsagePattern(
    pattern_id="p",
    domain="data_analysis",
    categories=[],
    transitions=[],
    turns=[],
    calls=[],
    tokens=[],
    errors=[],
    recoveries=[],
    agents_together=False,
    sessions=5,
    partners=3,
    support_hash="0" * 32,
)


def training(count: int) -> list[Task]:
    """Train tasks."""
    return [errands.build(PATTERN, seed, eval_share=0.0) for seed in range(count)]


def write_random_model(folder: Path) -> Path:
    """In `folder`, with SmolLM2's tokenizer."""
    tokenizer = load_tokenizer("smollm2")
    write_llama(folder, vocabulary=tokenizer.vocab_size, context=4096)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer._definition))
    (folder / "chat_template.jinja").write_text(_CHATML)
    return folder
