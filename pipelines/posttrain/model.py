"""The decoder with gradients, for training. Called by `sft`; imports torch.

Llama, Qwen2 and Qwen3 as `agents.engine.config` reads them: RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467), rotary
positions (arXiv:2104.09864), grouped-query attention (arXiv:2305.13245), SwiGLU (arXiv:2002.05202). The engine's own
model has weights packed for decoding and no gradients.
"""

import torch
from torch.nn.functional import cross_entropy, embedding, linear, rms_norm, scaled_dot_product_attention, silu
from torch.nn.utils.rnn import pad_sequence

from agents.engine.config import ModelConfig, inverse_frequencies
from agents.engine.weights import Read, tensor_shapes
from pipelines.posttrain.pack import Pack
from schemas.errors import ConfigError


class Decoder:
    """`parameters`: float32 tensors on `device`, named as Hugging Face names them; products run in `compute`."""

    def __init__(self, shape: ModelConfig, read: Read, device: str = "cpu") -> None:
        """Read every tensor. ConfigError for sliding windows, which training does not know."""
        if shape.window is not None:
            raise ConfigError(f"a model with a sliding window of {shape.window} tokens cannot be trained here")
        self.shape = shape
        self.device = device
        self.compute = torch.float32 if device == "cpu" else torch.bfloat16
        self.parameters = {name: read(name).to(device).requires_grad_() for name in tensor_shapes(shape)}
        self._frequencies = torch.tensor(inverse_frequencies(shape), device=device)

    def loss_sum(self, pack: Pack) -> torch.Tensor:
        """Sum of the cross entropies of the trained tokens, nats. The head runs on the rows that predict them alone."""
        rows, targets = (torch.from_numpy(a).to(self.device) for a in pack.predictions)
        return cross_entropy(self.logits(self.hidden(pack)[rows]).float(), targets, reduction="sum")

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] to [rows, vocabulary]."""
        return self._linear(hidden, "model.embed_tokens" if self.shape.tied else "lm_head")

    def hidden(self, pack: Pack) -> torch.Tensor:
        """Normalised states of the last layer, [tokens, hidden], in the flat order of `pack`."""
        shape = self.shape
        ids, positions = (torch.from_numpy(a).to(self.device) for a in (pack.input_ids, pack.positions))
        angles = positions[:, None].float() * self._frequencies
        angles = torch.cat([angles, angles], dim=-1)[:, None]
        rotation = angles.cos().to(self.compute), angles.sin().to(self.compute)
        mask = _mask(pack).to(self.device)
        x = embedding(ids, self.parameters["model.embed_tokens.weight"]).to(self.compute)
        for layer in range(shape.layers):
            name = f"model.layers.{layer}"
            x = x + self._attention(self._norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", rotation, pack, mask)
            y = self._norm(x, f"{name}.post_attention_layernorm")
            inner = silu(self._linear(y, f"{name}.mlp.gate_proj")) * self._linear(y, f"{name}.mlp.up_proj")
            x = x + self._linear(inner, f"{name}.mlp.down_proj")
        return self._norm(x, "model.norm")

    def _attention(
        self, x: torch.Tensor, name: str, rotation: tuple[torch.Tensor, torch.Tensor], pack: Pack, mask: torch.Tensor
    ) -> torch.Tensor:
        size = self.shape.head_size
        q, k, v = (self._linear(x, f"{name}.{part}_proj").unflatten(-1, (-1, size)) for part in "qkv")
        if self.shape.qk_norm:
            q, k = self._norm(q, f"{name}.q_norm"), self._norm(k, f"{name}.k_norm")
        q, k = _rotate(q, rotation), _rotate(k, rotation)
        groups = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return self._linear(_attend(q, k, v, pack, mask).flatten(1), f"{name}.o_proj")

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        bias = self.parameters.get(f"{name}.bias")
        weight = self.parameters[f"{name}.weight"].to(self.compute)
        return linear(x, weight, None if bias is None else bias.to(self.compute))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.parameters[f"{name}.weight"]
        return rms_norm(x.float(), weight.shape, weight, self.shape.norm_eps).to(self.compute)


def _mask(pack: Pack) -> torch.Tensor:
    """[longest, prefix + longest]: an own token sees the prefix, and the own tokens up to itself.

    The same for all examples: rows are padded at their end, where causality hides the padding from real tokens.
    """
    longest = max(pack.lengths)
    return torch.ones(longest, pack.prefix + longest, dtype=torch.bool).tril(pack.prefix)


def _rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = rotation
    one, two = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-two, one], dim=-1) * sin


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pack: Pack, mask: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, head_size] each; the prefix causally within itself, own tokens as `mask` says."""
    prefix, lengths = pack.prefix, pack.lengths
    own_q, own_k, own_v = (pad_sequence(t[prefix:].split(lengths), batch_first=True).transpose(1, 2) for t in (q, k, v))
    if not prefix:
        padded = scaled_dot_product_attention(own_q, own_k, own_v, is_causal=True).transpose(1, 2)
        return torch.cat([row[:length] for row, length in zip(padded, lengths, strict=True)])
    first_q, first_k, first_v = (t[None, :prefix].transpose(1, 2) for t in (q, k, v))
    first = scaled_dot_product_attention(first_q, first_k, first_v, is_causal=True)[0].transpose(0, 1)
    keys, values = (
        torch.cat([shared.expand(len(lengths), -1, -1, -1), own], dim=2)
        for shared, own in ((first_k, own_k), (first_v, own_v))
    )
    padded = scaled_dot_product_attention(own_q, keys, values, attn_mask=mask).transpose(1, 2)
    return torch.cat([first, *(row[:length] for row, length in zip(padded, lengths, strict=True))])
