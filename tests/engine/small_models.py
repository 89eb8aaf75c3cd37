"""Small random checkpoints with SmolLM2's vocabulary, for tests of the engine that need no sense in the replies."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agents.engine import weights
from agents.engine.engine import EmbeddedEngine
from agents.engine.models.llama import Llama
from agents.engine.tokenizer import ChatTokenizer

VOCABULARY = 49152


def write_llama(folder: Path, seed: int) -> Path:
    """A random Llama of 2 layers in `folder`."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.4,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def small_engine(folder: Path, tokenizer: ChatTokenizer, version: str = "v1", **options) -> EmbeddedEngine:
    """An engine over the checkpoint in `folder`."""
    model = Llama(*weights.open_checkpoint(folder), "fp16")
    return EmbeddedEngine("small", version, model, tokenizer, **{"threads": 1, "context": 512} | options)
