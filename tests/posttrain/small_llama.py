"""Tiny random Llamas and random examples, for the tests of training."""

import json
import random
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipelines.posttrain.examples import Example

VOCABULARY = 97


def write_llama(
    folder: Path, *, tied: bool = True, kv_heads: int = 2, vocabulary: int = VOCABULARY, context: int = 128
) -> Path:
    """A random Llama of 2 layers in `folder`, float32."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "lineage.json").write_text(json.dumps({"made_by": "test"}))
    return folder


def examples(count: int, seed: int = 0, *, prefix: int = 9) -> list[Example]:
    """Random examples that share `prefix` tokens; of the rest about half is trained."""
    draw = random.Random(seed)
    shared = [draw.randrange(VOCABULARY) for _ in range(prefix)]
    made = []
    for i in range(count):
        own = [draw.randrange(VOCABULARY) for _ in range(draw.randint(2, 12))]
        mask = [False] * prefix + [draw.random() < 0.5 for _ in own[:-1]] + [True]
        made.append(Example(f"sample_{i}", np.array(shared + own, np.int32), np.array(mask)))
    return made
