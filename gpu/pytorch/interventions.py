"""Interventions in a pass in PyTorch, row by row of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gpu.lora.adapter import Lora
from gpu.reach import Reach


@dataclass(frozen=True, slots=True)
class TorchLora:
    """An adapter: A (rank, n_in) and B (n_out, rank), times α / r, of each module it changes."""

    name: str
    pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]

    @classmethod
    def of(cls, lora: Lora) -> TorchLora:
        pairs = {
            module: (torch.from_numpy(lora.a(module)), torch.from_numpy(lora.b(module)))
            for module in lora.modules
        }
        return cls(lora.name, pairs)


class Untouched:
    """Is shown what a pass computes in each layer and gives back what it goes on with: the same."""

    def product(self, module: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The output of a module (n_rows, n_out) of its input x (n_rows, n_in)."""
        return y

    def of(self, rows: torch.Tensor) -> Untouched:
        """The same for these rows alone, by their numbers."""
        return self

    def heads(self, layer: int, attended: torch.Tensor) -> torch.Tensor:
        """What the heads put out (n_rows, n_heads, head_dim)."""
        return attended

    def attention(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        """What attention adds to the residual stream (n_rows, hidden_size)."""
        return update

    def mlp(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        """What the MLP adds to it (n_rows, hidden_size)."""
        return update

    def before(self, layer: int, x: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """What comes before a layer (n_rows, hidden_size): `update` to the stream `x`, of the MLP
        of the layer before, or the embedding to none."""
        return update


UNTOUCHED = Untouched()


class RowReach(Untouched):
    """Changes each row as the reach of its slot says: `rows`, one of each."""

    def __init__(self, rows: Sequence[Reach], loras: Sequence[TorchLora] = ()) -> None:
        self._rows = rows
        self._loras = loras

    def of(self, rows: torch.Tensor) -> RowReach:
        return RowReach([self._rows[row] for row in rows.tolist()], self._loras)

    def product(self, module: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for lora in self._loras:
            if module in lora.pairs:
                strengths = torch.tensor([[r.loras.get(lora.name, 0.0)] for r in self._rows])
                if strengths.any():
                    a, b = lora.pairs[module]
                    y = y + torch.where(strengths != 0, strengths * (x @ a.T @ b.T), 0.0)
        return y

    def heads(self, layer: int, attended: torch.Tensor) -> torch.Tensor:
        heads = range(attended.shape[1])
        factors = [[r.heads.get((layer, head), 1.0) for head in heads] for r in self._rows]
        return attended * torch.tensor(factors)[..., None]

    def attention(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        return update * torch.tensor([[r.attention.get(layer, 1.0)] for r in self._rows])

    def mlp(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        return update * torch.tensor([[r.mlp.get(layer, 1.0)] for r in self._rows])

    def before(self, layer: int, x: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        changed = update.clone()
        for i, reach in enumerate(self._rows):
            if layer in reach.patch:
                changed[i] = torch.from_numpy(reach.patch[layer]) - x[i]
            if layer in reach.steer:
                changed[i] += torch.from_numpy(reach.steer[layer])
        return changed
