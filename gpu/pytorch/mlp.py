"""What follows attention in a layer: one MLP, or a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from gpu.checkpoint.parts import expert_modules
from gpu.config import Experts, ModelConfig
from gpu.pytorch.loading import Linear, Loader
from gpu.pytorch.reach import UNTOUCHED, Untouched
from gpu.pytorch.statistics import Watcher


@dataclass(frozen=True, slots=True)
class Swiglu:
    """down(silu(gate(x)) · up(x)) (Shazeer 2020, "GLU Variants Improve Transformer")."""

    gate: Linear
    up: Linear
    down: Linear

    def __call__(
        self, x: torch.Tensor, watcher: Watcher, reach: Untouched = UNTOUCHED
    ) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x, reach)) * self.up(x, reach), reach)


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """An MLP that every token is given to, times the sigmoid of a gate (n_out = 1)."""

    mlp: Swiglu
    gate: Linear

    def __call__(
        self, x: torch.Tensor, watcher: Watcher, reach: Untouched = UNTOUCHED
    ) -> torch.Tensor:
        return torch.sigmoid(self.gate(x, reach)) * self.mlp(x, watcher, reach)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Σ gate · expert(x) over the few experts that the router (n_out = n) gives most (Shazeer et
    al. 2017, "Outrageously Large Neural Networks"); of equals the one with the lower number."""

    settings: Experts
    router: Linear
    experts: tuple[Swiglu, ...]
    shared: SharedExpert | None

    def __call__(
        self, x: torch.Tensor, watcher: Watcher, reach: Untouched = UNTOUCHED
    ) -> torch.Tensor:
        chosen, gates = self._route(x, reach)
        update = torch.zeros_like(x)
        norms = torch.zeros_like(gates)
        for number in torch.unique(chosen).tolist():
            rows, places = torch.nonzero(chosen == number, as_tuple=True)
            given = self.experts[number](x[rows], watcher, reach.of(rows))
            norms[rows, places] = given.norm(dim=-1)
            update.index_add_(0, rows, given * gates[rows, places, None])
        watcher.add_experts(chosen, gates, norms)
        return update if self.shared is None else update + self.shared(x, watcher, reach)

    def _route(self, x: torch.Tensor, reach: Untouched) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of the experts of each row, largest gate first, and their gates, both
        (n_rows, per_token)."""
        shares = functional.softmax(self.router(x, reach), -1)
        gates, chosen = shares.sort(dim=-1, descending=True, stable=True)
        gates, chosen = (found[:, : self.settings.per_token] for found in (gates, chosen))
        if self.settings.normalised:
            gates = gates / gates.sum(-1, keepdim=True)
        return chosen, gates


Mlp = Swiglu | Mixture


def load_mlp(config: ModelConfig, load: Loader, i: int) -> Mlp:
    """That of layer `i`."""
    experts, layer = config.experts_of(i), f"model.layers.{i}"
    if experts is None:
        return _swiglu(config, load, f"{layer}.mlp", config.intermediate_size)
    hidden = config.hidden_size
    router = f"{layer}.block_sparse_moe.gate"  # Mixtral's
    if f"{router}.weight" not in load:
        router = f"{layer}.mlp.gate"
    shared = None
    if experts.shared_width:
        mlp = _swiglu(config, load, f"{layer}.mlp.shared_expert", experts.shared_width)
        shared = SharedExpert(mlp, _exact(load, f"{layer}.mlp.shared_expert_gate", 1, hidden))
    of_each = [
        gate_up + down
        for gate_up, down in zip(
            expert_modules(config, i, "mlp.experts.gate_up"),
            expert_modules(config, i, "mlp.experts.down"),
            strict=True,
        )
    ]
    return Mixture(
        experts,
        _exact(load, router, experts.n, hidden),
        _load_experts(load, f"{layer}.mlp.experts", of_each, experts.width, hidden),
        shared,
    )


def _exact(load: Loader, module: str, n_out: int, n_in: int) -> Linear:
    return Linear(load.exact(f"{module}.weight", n_out, n_in), module=module)


def _swiglu(config: ModelConfig, load: Loader, mlp: str, inner: int) -> Swiglu:
    hidden = config.hidden_size
    return Swiglu(
        gate=load.linear(f"{mlp}.gate_proj", inner, hidden, config.mlp_bias),
        up=load.linear(f"{mlp}.up_proj", inner, hidden, config.mlp_bias),
        down=load.linear(f"{mlp}.down_proj", hidden, inner, config.mlp_bias),
    )


def _load_experts(
    load: Loader, of_all: str, of_each: list[tuple[str, ...]], inner: int, hidden: int
) -> tuple[Swiglu, ...]:
    """Gate, up and down `of_each`, or `of_all` of a layer as one tensor."""
    if f"{of_all}.gate_up_proj" not in load:
        return tuple(
            Swiglu(
                load.linear(gate, inner, hidden, False),
                load.linear(up, inner, hidden, False),
                load.linear(down, hidden, inner, False),
            )
            for gate, up, down in of_each
        )
    pairs = load.stacked(f"{of_all}.gate_up_proj", len(of_each), 2 * inner, hidden)
    downs = load.stacked(f"{of_all}.down_proj", len(of_each), hidden, inner)
    return tuple(
        Swiglu(
            *(
                Linear(weight, module=module)
                for weight, module in zip((both[:inner], both[inner:], down), modules, strict=True)
            )
        )
        for both, down, modules in zip(pairs, downs, of_each, strict=True)
    )
