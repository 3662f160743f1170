"""MLPs and mixtures of experts in PyTorch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import functional

from gpu.architectures.common.tensor_map import TensorMap
from gpu.checkpoint.tensor_names import expert_modules
from gpu.config import ModelConfig, MoeConfig
from gpu.pytorch.interventions import NO_INTERVENTIONS, InterventionHooks
from gpu.pytorch.loading import Linear, Loader
from gpu.pytorch.statistics import Watcher


@dataclass(frozen=True, slots=True)
class Swiglu:
    """down(silu(gate(x)) · up(x)) (Shazeer 2020, "GLU Variants Improve Transformer")."""

    gate: Linear
    up: Linear
    down: Linear

    def __call__(
        self, x: torch.Tensor, watcher: Watcher, hooks: InterventionHooks = NO_INTERVENTIONS
    ) -> torch.Tensor:
        gate, up = self.gate(x, hooks), self.up(x, hooks)
        hidden = functional.silu(gate) * up
        watcher.keep(gate=gate, up=up, ffn_hidden=hidden)
        return self.down(hidden, hooks)


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """An MLP that every token goes through, times the sigmoid of a gate (n_out = 1)."""

    mlp: Swiglu
    gate: Linear

    def __call__(
        self, x: torch.Tensor, watcher: Watcher, hooks: InterventionHooks = NO_INTERVENTIONS
    ) -> torch.Tensor:
        return torch.sigmoid(self.gate(x, hooks)) * self.mlp(x, watcher, hooks)


@dataclass(frozen=True, slots=True)
class Moe:
    """Σ gate · expert(x) over the top-k experts of the router (n_out = n_experts) (Shazeer et al.
    2017, "Outrageously Large Neural Networks"). Of equal logits the lower number wins."""

    layer: int
    config: MoeConfig
    router: Linear
    experts: tuple[Swiglu, ...]
    shared: SharedExpert | None

    def __call__(
        self, x: torch.Tensor, watcher: Watcher, hooks: InterventionHooks = NO_INTERVENTIONS
    ) -> torch.Tensor:
        chosen, gates = self._route(x, hooks)
        update = torch.zeros_like(x)
        norms = torch.zeros_like(gates)
        for number in torch.unique(chosen).tolist():
            rows, places = torch.nonzero(chosen == number, as_tuple=True)
            given = self.experts[number](x[rows], watcher, hooks.of(rows))
            norms[rows, places] = given.norm(dim=-1)
            update.index_add_(0, rows, given * gates[rows, places, None])
        watcher.add_experts(chosen, gates, norms)
        return update if self.shared is None else update + self.shared(x, watcher, hooks)

    def _route(
        self, x: torch.Tensor, hooks: InterventionHooks
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the numbers of each row's experts, largest gate first, and their gates, both
        (n_rows, experts_per_token)."""
        shares = functional.softmax(hooks.router(self.layer, self.router(x, hooks)), -1)
        gates, chosen = shares.sort(dim=-1, descending=True, stable=True)
        gates, chosen = (found[:, : self.config.experts_per_token] for found in (gates, chosen))
        if self.config.norm_topk_prob:
            gates = gates / gates.sum(-1, keepdim=True)
        return chosen, gates


Mlp = Swiglu | Moe


def load_mlp(config: ModelConfig, load: Loader, tensors: TensorMap, i: int) -> Mlp:
    """Load the MLP of layer `i`."""
    moe, hidden = config.moe_of(i), config.hidden_size
    if moe is None:
        ops = "mlp.gate_up", "mlp.down"
        return _load_swiglu(config, load, tensors.modules(i, "mlp", *ops), config.intermediate_size)
    gates = tensors.modules(i, "mlp", "mlp.router")
    shared_gates = [gate for gate in gates if gate.endswith("shared_expert_gate")]
    routers = [gate for gate in gates if gate not in shared_gates]
    saved = [router for router in routers if f"{router}.weight" in load]
    shared, inner = None, moe.shared_intermediate_size
    if inner:
        modules = tensors.modules(i, "mlp", "mlp.shared.gate_up", "mlp.shared.down")
        gate = _float32_linear(load, shared_gates[0], 1, hidden)
        shared = SharedExpert(_load_swiglu(config, load, modules, inner), gate)
    ops = "mlp.experts.gate_up", "mlp.experts.down"
    of_each = [
        gate_up + down
        for gate_up, down in zip(*(expert_modules(config, i, op) for op in ops), strict=True)
    ]
    stacked = [module for module in tensors.modules(i, "mlp", *ops) if "*" not in module]
    return Moe(
        i,
        moe,
        _float32_linear(load, (saved or routers)[0], moe.n_experts, hidden),
        _load_experts(load, stacked, of_each, moe.intermediate_size, hidden),
        shared,
    )


def _float32_linear(load: Loader, module: str, n_out: int, n_in: int) -> Linear:
    return Linear(load.float32_matrix(f"{module}.weight", n_out, n_in), module=module)


def _load_swiglu(config: ModelConfig, load: Loader, modules: Iterable[str], inner: int) -> Swiglu:
    """Load gate, up and down."""
    gate, up, down = modules
    hidden, bias = config.hidden_size, config.mlp_bias
    return Swiglu(
        gate=load.linear(gate, inner, hidden, bias),
        up=load.linear(up, inner, hidden, bias),
        down=load.linear(down, hidden, inner, bias),
    )


def _load_experts(
    load: Loader, stacked: list[str], of_each: list[tuple[str, ...]], inner: int, hidden: int
) -> tuple[Swiglu, ...]:
    """Load all experts of a layer from two tensors, `stacked`, or else gate, up and down
    `of_each` from tensors of their own."""
    if not stacked or stacked[0] not in load:
        return tuple(
            Swiglu(
                load.linear(gate, inner, hidden, False),
                load.linear(up, inner, hidden, False),
                load.linear(down, hidden, inner, False),
            )
            for gate, up, down in of_each
        )
    pairs = load.stacked(stacked[0], len(of_each), 2 * inner, hidden)
    downs = load.stacked(stacked[1], len(of_each), hidden, inner)
    return tuple(
        Swiglu(
            *(
                Linear(weight, module=module)
                for weight, module in zip((both[:inner], both[inner:], down), modules, strict=True)
            )
        )
        for both, down, modules in zip(pairs, downs, of_each, strict=True)
    )
