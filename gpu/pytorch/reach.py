"""Interventions in a pass in PyTorch, row by row of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from gpu.reach import NOTHING, Reach
from gpu.step import Row


class Untouched:
    """Is shown what a pass computes in each layer and gives back what it goes on with: the same."""

    def heads(self, layer: int, attended: torch.Tensor) -> torch.Tensor:
        """What the heads put out (n_rows, n_heads, head_dim)."""
        return attended

    def attention(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        """What attention adds to the residual stream (n_rows, hidden_size)."""
        return update

    def mlp(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        """What the MLP adds to it (n_rows, hidden_size)."""
        return update

    def before(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """What comes before a layer (n_rows, hidden_size): the embedding, or what the MLP of the
        layer before adds."""
        return x


UNTOUCHED = Untouched()


class RowReach(Untouched):
    """Changes each row as the reach of its slot says."""

    def __init__(self, rows: Sequence[Row], reaches: Mapping[int, Reach]) -> None:
        self._rows = [(reaches.get(row.slot, NOTHING), row.position) for row in rows]

    def heads(self, layer: int, attended: torch.Tensor) -> torch.Tensor:
        heads = range(attended.shape[1])
        factors = [[r.heads.get((layer, head), 1.0) for head in heads] for r, _ in self._rows]
        return attended * torch.tensor(factors)[..., None]

    def attention(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        return update * torch.tensor([[r.attention.get(layer, 1.0)] for r, _ in self._rows])

    def mlp(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        return update * torch.tensor([[r.mlp.get(layer, 1.0)] for r, _ in self._rows])

    def before(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        vectors = torch.zeros_like(x)
        for i, (reach, position) in enumerate(self._rows):
            if layer in reach.steer and position >= reach.steer_first:
                vectors[i] = torch.from_numpy(reach.steer[layer])
        return x + vectors
