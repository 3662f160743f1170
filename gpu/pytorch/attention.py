"""Rotary positions and attention in PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gpu.config import ModelConfig, RopeConfig
from gpu.kv.formats import pack_block
from gpu.reference.kv import round_kv


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotation of each pair of a head by the row's position: (n_rows, 1, head_dim / 2)."""

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, positions: torch.Tensor, inv_freq: torch.Tensor, factor: float) -> Rotary:
        """Compute the rotations; `factor` multiplies the rotated vectors."""
        angles = torch.outer(positions.double(), inv_freq)[:, None]
        return cls((angles.cos() * factor).float(), (angles.sin() * factor).float())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate the pairs (j, j + head_dim / 2) of x (n_rows, n_heads, head_dim)."""
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1)


class RotaryEmbeddings:
    """Rotary positions of a model, for texts of `context` tokens; `rotates` False: all turn by no
    angle."""

    def __init__(self, config: ModelConfig, context: int) -> None:
        self.rotates = True
        self._of_layers = [config.rope_of(i) for i in range(config.n_layers)]
        self._inv_freq = {
            rope: torch.from_numpy(rope.inv_freq(config.head_dim, context))
            for rope in self._of_layers
            if rope is not None
        }

    def at(self, positions: torch.Tensor, *, scaled: bool = True) -> list[Rotary | None]:
        """Return the rotation of each layer; None: it has no positions. `scaled` False: without the
        factor of rotated vectors."""
        positions = positions if self.rotates else torch.zeros_like(positions)
        found: dict[RopeConfig | None, Rotary | None] = {
            rope: Rotary.of(positions, inv_freq, rope.attention_factor if scaled else 1.0)
            for rope, inv_freq in self._inv_freq.items()
        }
        return [found.get(rope) for rope in self._of_layers]


def unseen_keys(positions: torch.Tensor, n_context: int, window: int | None) -> torch.Tensor:
    """Return which keys rows at `positions` do not see, (n_rows, n_context): each row sees those up
    to its own position, or the last `window` of them."""
    at = torch.arange(n_context)
    unseen = at > positions[:, None]
    if window is not None:
        unseen |= at <= positions[:, None] - window
    return unseen


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    unseen: torch.Tensor,
    scale: float,
    biases: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(q · kᵀ · scale [+ biases]) · v (n_rows, n_heads, head_dim), and the attention
    weights (n_rows, n_heads, n_context).

    q (n_rows, n_heads, head_dim); keys, values (n_context, n_kv_heads, head_dim); query heads share
    key heads in groups (Ainslie et al. 2023, "GQA"). unseen (n_rows, n_heads or 1, n_context):
    keys to which a head does not attend in a row. biases (n_rows, n_heads, n_context).
    """
    _, n_kv_heads, head_dim = keys.shape
    grouped = q.view(len(q), n_kv_heads, -1, head_dim)
    scores = torch.einsum("rkgd,ckd->rkgc", grouped, keys).flatten(1, 2) * scale
    if biases is not None:
        scores = scores + biases
    weights = scores.masked_fill(unseen, -math.inf).softmax(-1)
    of_groups = weights.view(*grouped.shape[:3], -1)
    attn_out = torch.einsum("rkgc,ckd->rkgd", of_groups, values)
    return attn_out.reshape(q.shape), weights


def rounded(heads: torch.Tensor, storage: str | None) -> torch.Tensor:
    """Return keys or values (…, head_dim) rounded to `storage` (`gpu.kv.formats`) and back; None:
    as they are."""
    if storage is None:
        return heads
    x = heads.double().numpy()
    return torch.from_numpy(round_kv(storage, x, pack_block(x.shape[-1]))).to(heads.dtype)
