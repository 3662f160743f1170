"""Network of the bundled model in torch: a small Llama-like decoder.

Conventions follow the Hugging Face checkpoint layout, so `export.py` only has to name tensors:
rotary embedding in the rotate-half form, grouped-query attention, SwiGLU, RMSNorm before each
block, input and output embeddings tied. This file trains and scores the model; it keeps no KV
cache across calls except the explicit one in `sample.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EMBEDDING_STD, FINAL_NORM = 1.0, 0.05  # together they give first logits of about 0.7


@dataclass(frozen=True, slots=True)
class TaleConfig:
    """Sizes of the network. `vocab_size` includes special tokens."""

    vocab_size: int
    n_layers: int = 8
    hidden: int = 192
    n_heads: int = 6
    n_kv_heads: int = 3
    head_dim: int = 32
    intermediate: int = 384
    max_positions: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_tables(config: TaleConfig) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each (max_positions, head_dim), with equal halves of the last axis."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    inverse = config.rope_theta**-exponent  # (head_dim / 2,)
    angle = torch.arange(config.max_positions, dtype=torch.float32)[:, None] * inverse
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to x (..., n, head_dim), pairing x[i] and x[i + head_dim/2]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


KeyValue = tuple[Tensor, Tensor]  # each (batch, n_kv_heads, n_past, head_dim)


class Attention(nn.Module):
    """Causal grouped-query attention: n_heads / n_kv_heads query heads share a key/value head."""

    def __init__(self, config: TaleConfig) -> None:
        super().__init__()
        self.config = config
        q_width = config.n_heads * config.head_dim
        kv_width = config.n_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, q_width, bias=False)
        self.k_proj = nn.Linear(config.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(q_width, config.hidden, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, past: KeyValue | None
    ) -> tuple[Tensor, KeyValue]:
        batch, n_tokens, _ = x.shape
        heads = (batch, n_tokens, -1, self.config.head_dim)
        q = rotate(self.q_proj(x).view(heads).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(heads).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        groups = self.config.n_heads // self.config.n_kv_heads
        mixed = F.scaled_dot_product_attention(
            q,
            k.repeat_interleave(groups, dim=1),
            v.repeat_interleave(groups, dim=1),
            attn_mask=mask,
            is_causal=mask is None and n_tokens > 1,
        )
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, n_tokens, -1)), (k, v)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: TaleConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """Layer: attention and MLP, each added to the residual stream."""

    def __init__(self, config: TaleConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, past: KeyValue | None
    ) -> tuple[Tensor, KeyValue]:
        mixed, present = self.self_attn(self.input_layernorm(x), cos, sin, mask, past)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), present


class Tale(nn.Module):
    """Whole model. `forward` returns hidden states; `logits` projects them to the vocabulary."""

    def __init__(self, config: TaleConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.hidden, config.norm_eps)
        cos, sin = rope_tables(config)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.reset()

    def reset(self) -> None:
        """Initialise the weights: normal, with smaller projections into the residual stream in
        deeper networks.

        The embedding is large, and the final norm small to compensate. With the usual 0.02, the
        output of the layers grew to a hundred times the embedding: the residual stream hardly
        contained the token any more, and the model never learned to copy a word.
        """
        deep = (2 * self.config.n_layers) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            std = EMBEDDING_STD if "embed" in name else parameter.shape[1] ** -0.5 * 0.6
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std *= deep
            nn.init.normal_(parameter, std=std)
        nn.init.constant_(self.norm.weight, FINAL_NORM)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        past: list[KeyValue] | None = None,
    ) -> tuple[Tensor, list[KeyValue]]:
        """Map ids (batch, n) to hidden states (batch, n, hidden) and each layer's keys and values.

        positions (batch, n) default to 0..n-1; mask is boolean, True where attention is allowed,
        (batch, 1, n, n_past + n), and defaults to causal.
        """
        if positions is None:
            cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        else:
            cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        x = self.embed_tokens(ids)
        presents: list[KeyValue] = []
        for index, layer in enumerate(self.layers):
            x, present = layer(x, cos, sin, mask, None if past is None else past[index])
            presents.append(present)
        return self.norm(x), presents

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden (..., hidden) to logits (..., vocab_size) with the tied embedding."""
        return F.linear(hidden, self.embed_tokens.weight)

    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())
