"""Statistics and states captured from a pass in PyTorch."""

from __future__ import annotations

import math
import time

import numpy as np
import torch

from gpu.step import Captured, ExpertChoices

SlotWeights = tuple[torch.Tensor, torch.Tensor]
"""Numbers of a sequence's rows in the step (n,), their attention weights (n, n_heads,
n_context)."""


class Watcher:
    """Observer of a pass; this one captures nothing and costs nothing."""

    def add(self, kind: str, x: torch.Tensor) -> None:
        """Take the residual stream x (n_rows, hidden_size): `kind` "embedding", or "residual" after
        a layer."""

    def add_update(self, kind: str, x: torch.Tensor, update: torch.Tensor) -> None:
        """Take the `update` that "attention" or "mlp" adds to the residual stream x, both (n_rows,
        hidden_size)."""

    def add_weights(self, weights: list[SlotWeights], n_rows: int) -> None:
        """Take the attention weights of a layer."""

    def add_experts(self, chosen: torch.Tensor, gates: torch.Tensor, norms: torch.Tensor) -> None:
        """Take the experts of each row of a layer, their gates and the norms of their outputs, all
        (n_rows, experts_per_token)."""

    def keep(self, **found: torch.Tensor) -> None:
        """Take activations of the layer that runs, by their names in `gpu.step.LayerActivations`, a
        row of the step each; keys and values are those of the row's whole sequence."""

    def mark(self) -> None:
        """Note the time: the embedding, an attention, an MLP or the whole pass ends."""


NO_WATCHER = Watcher()


class StatsWatcher(Watcher):
    """Captures the statistics of `Captured`. Times are elapsed time on the CPU."""

    def __init__(self, expert_layers: tuple[int, ...] = ()) -> None:
        self._expert_layers = expert_layers
        self._chosen: list[torch.Tensor] = []
        self._gates: list[torch.Tensor] = []
        self._norms: dict[str, list[torch.Tensor]] = {}
        self._cosines: dict[str, list[torch.Tensor]] = {}
        self._entropy: list[torch.Tensor] = []
        self._marks = [time.perf_counter()]

    def add(self, kind: str, x: torch.Tensor) -> None:
        self._norms.setdefault(kind, []).append(x.norm(dim=-1))

    def add_update(self, kind: str, x: torch.Tensor, update: torch.Tensor) -> None:
        self.add(kind, update)
        lengths = x.norm(dim=-1) * self._norms[kind][-1]
        cosine = (x * update).sum(-1) / lengths.where(lengths > 0, 1.0)
        self._cosines.setdefault(kind, []).append(cosine.clamp(-1, 1))

    def add_weights(self, weights: list[SlotWeights], n_rows: int) -> None:
        entropy = torch.empty(n_rows, weights[0][1].shape[1])
        for which, p in weights:
            entropy[which] = -torch.xlogy(p, p).sum(-1) / math.log(2)
        self._entropy.append(entropy)

    def add_experts(self, chosen: torch.Tensor, gates: torch.Tensor, norms: torch.Tensor) -> None:
        self._chosen.append(chosen)
        self._gates.append(gates)

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    def captured(self) -> Captured:
        spans = np.diff(self._marks).astype(np.float32) * np.float32(1e3)
        return Captured(
            embedding=self._norms["embedding"][0].numpy(),
            residual=torch.stack(self._norms["residual"], 1).numpy(),
            attention=torch.stack(self._norms["attention"], 1).numpy(),
            mlp=torch.stack(self._norms["mlp"], 1).numpy(),
            attention_cosine=torch.stack(self._cosines["attention"], 1).numpy(),
            mlp_cosine=torch.stack(self._cosines["mlp"], 1).numpy(),
            entropy=torch.stack(self._entropy, 1).numpy(),
            chosen=torch.stack(self._chosen, 1).numpy().astype(np.uint32) if self._chosen else None,
            gates=torch.stack(self._gates, 1).numpy() if self._gates else None,
            expert_layers=self._expert_layers,
            layer_ms=spans[1:-1].reshape(-1, 2),
            embed_ms=float(spans[0]),
            head_ms=float(spans[-1]),
        )


class InspectionWatcher(Watcher):
    """Captures what an `InspectionResult` holds. `keys`: (first, n), the range of keys
    whose attention weights are captured; `layer`: that whose activations are `kept`."""

    def __init__(self, keys: tuple[int, int] | None, layer: int | None = None) -> None:
        self._keys = keys
        self._layer = layer
        self.kept: dict[str, torch.Tensor] = {}
        self._states: list[torch.Tensor] = []
        self._attention: list[torch.Tensor] = []
        self._routes: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def add(self, kind: str, x: torch.Tensor) -> None:
        if kind in ("embedding", "residual"):
            self._states.append(x)

    def keep(self, **found: torch.Tensor) -> None:
        if len(self._states) - 1 == self._layer:
            self.kept |= found

    def add_weights(self, weights: list[SlotWeights], n_rows: int) -> None:
        if self._keys is None:
            return
        first, n = self._keys
        kept = torch.zeros(n_rows, weights[0][1].shape[1], n)
        for which, p in weights:
            there = p[..., first : first + n]
            kept[which, :, : there.shape[-1]] = there
        self._attention.append(kept)

    def add_experts(self, chosen: torch.Tensor, gates: torch.Tensor, norms: torch.Tensor) -> None:
        self._routes.append((chosen, gates, norms))

    @property
    def routes(self) -> ExpertChoices:
        chosen, gates, norms = (
            torch.stack(parts, 1).numpy() for parts in zip(*self._routes, strict=True)
        )
        return ExpertChoices(chosen.astype(np.uint32), gates, norms)

    @property
    def states(self) -> torch.Tensor:
        """(n_rows, n_layers + 1, hidden_size)"""
        return torch.stack(self._states, 1)

    @property
    def attention(self) -> torch.Tensor:
        """(n_rows, n_layers, n_heads, n)"""
        return torch.stack(self._attention, 1)
