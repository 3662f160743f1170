"""Interventions in a pass in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gpu.interventions.active import ActiveInterventions
from gpu.lora.adapter import Lora


@dataclass(frozen=True, slots=True)
class TorchLora:
    """A LoRA adapter: A (rank, n_in) and B (n_out, rank), times α / r, of each target module."""

    name: str
    pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]

    @classmethod
    def of(cls, lora: Lora) -> TorchLora:
        pairs = {
            module: (torch.from_numpy(lora.a(module)), torch.from_numpy(lora.b(module)))
            for module in lora.modules
        }
        return cls(lora.name, pairs)


class InterventionHooks:
    """Hooks of a pass. Each returns the value the pass goes on with; here, the one it is given."""

    def linear(self, module: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Hook of a linear module: input x (n_rows, n_in), output y (n_rows, n_out)."""
        return y

    def of(self, rows: torch.Tensor) -> InterventionHooks:
        """Return the hooks of these rows alone."""
        return self

    def heads(self, layer: int, attn_out: torch.Tensor) -> torch.Tensor:
        """Hook of the outputs of the heads (n_rows, n_heads, head_dim)."""
        return attn_out

    def unseen(self, layer: int, unseen: torch.Tensor) -> torch.Tensor:
        """Hook of the keys to which heads do not attend in the rows of one sequence (n_rows,
        n_heads, n_keys)."""
        return unseen

    def attention(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        """Hook of the update of attention (n_rows, hidden_size)."""
        return update

    def mlp(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        """Hook of the update of the MLP (n_rows, hidden_size)."""
        return update

    def router(self, layer: int, logits: torch.Tensor) -> torch.Tensor:
        """Hook of the logits of a router (n_rows, n_experts)."""
        return logits

    def before(self, layer: int, x: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """Hook of the residual stream before a layer, x + update (n_rows, hidden_size each), as a
        change of `update`: that of the MLP below, or the embedding with x = 0."""
        return update


NO_INTERVENTIONS = InterventionHooks()


class RowInterventions(InterventionHooks):
    """Hooks that apply to each row the interventions of its slot. `rows`: those of each row."""

    def __init__(
        self, rows: Sequence[ActiveInterventions], loras: Sequence[TorchLora] = ()
    ) -> None:
        self._rows = rows
        self._loras = loras

    def of(self, rows: torch.Tensor) -> RowInterventions:
        return RowInterventions([self._rows[row] for row in rows.tolist()], self._loras)

    def linear(self, module: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for lora in self._loras:
            if module in lora.pairs:
                strengths = torch.tensor([[r.loras.get(lora.name, 0.0)] for r in self._rows])
                if strengths.any():
                    a, b = lora.pairs[module]
                    y = y + torch.where(strengths != 0, strengths * (x @ a.T @ b.T), 0.0)
        return y

    def heads(self, layer: int, attn_out: torch.Tensor) -> torch.Tensor:
        heads = range(attn_out.shape[1])
        factors = [[r.heads.get((layer, head), 1.0) for head in heads] for r in self._rows]
        return attn_out * torch.tensor(factors)[..., None]

    def unseen(self, layer: int, unseen: torch.Tensor) -> torch.Tensor:
        changed = unseen.clone()
        for i, active in enumerate(self._rows):
            for (at, head), keys in active.masked.items():
                if at == layer:
                    changed[i, head, slice(*keys)] = True
        return changed

    def attention(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        return update * torch.tensor([[r.attention.get(layer, 1.0)] for r in self._rows])

    def mlp(self, layer: int, update: torch.Tensor) -> torch.Tensor:
        return update * torch.tensor([[r.mlp.get(layer, 1.0)] for r in self._rows])

    def router(self, layer: int, logits: torch.Tensor) -> torch.Tensor:
        off = torch.zeros_like(logits, dtype=torch.bool)
        for i, active in enumerate(self._rows):
            off[i, [expert for at, expert in active.experts_off if at == layer]] = True
        return logits.masked_fill(off, -torch.inf)

    def before(self, layer: int, x: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        changed = update.clone()
        for i, active in enumerate(self._rows):
            if layer in active.patch:
                changed[i] = torch.from_numpy(active.patch[layer]) - x[i]
            if layer in active.steer:
                changed[i] += torch.from_numpy(active.steer[layer])
        return changed
