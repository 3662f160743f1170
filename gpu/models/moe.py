"""Mixtures of experts (Shazeer et al. 2017; Jiang et al. 2024) in the place of Llama's MLPs. What
several architectures do:

    router          RMSNorm, a logit of each expert
    choose          the experts of the largest logits, weighed by a softmax
    group           rows of one expert side by side (not where there are few)
    experts.gate_up RMSNorm, two projections, silu(gate) · up, of every expert a row was given to
    experts.down    projection
    combine         their sum, weighed, added to the residual stream

A layer may have one more expert, which every row is given to and a gate of its own weighs (Qwen
Team 2024): two dispatches more, and a row of the router is that gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu import ops
from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.checkpoint.parts import expert_modules
from gpu.checkpoint.weights import Member, WeightLoader
from gpu.config import Experts
from gpu.models.llama import Llama, Mlp
from gpu.models.recording import Pass
from gpu.models.workspace import ExpertWork
from gpu.ops.experts import NOWHERE
from gpu.webgpu.buffers import Tensor


@dataclass(frozen=True, slots=True)
class Mixture:
    """Weights of one layer.

    router   n (+ 1, the gate of the shared expert) × hidden, float32
    gate_up  2 · width × hidden of each expert, rows of gate and up in turn
    down     hidden × width of each expert
    slots    where each expert lies in these two, see gpu.ops.experts
    shared   None where there is none
    """

    router: Matrix
    gate_up: ExpertStack
    down: ExpertStack
    slots: Tensor
    shared: Mlp | None

    @property
    def matrices(self) -> list[Matrix]:
        shared = [self.shared.gate_up, self.shared.down] if self.shared else []
        return [self.router, *shared, self.gate_up.matrix, self.down.matrix]

    @property
    def stacks(self) -> tuple[ExpertStack, ExpertStack]:
        return self.gate_up, self.down

    @property
    def is_resident(self) -> bool:
        """Are all experts on the device?"""
        return self.gate_up.host is None


class MixtureLlama(Llama):
    """Llama with experts in the layers for which `config.experts_of` says so."""

    own_module: str | None = None
    """What checkpoints that have tensors of each expert call `mlp`, where it is not that."""
    modules = ("gate_proj", "up_proj", "down_proj")
    """What they call gate, up and down of an expert."""

    def load_rest(self, load: WeightLoader, context: int) -> None:
        self.mixtures: dict[int, Mixture] = {}
        super().load_rest(load, context)

    def mlp_matrices(self, i: int) -> Sequence[Matrix]:
        return self.mixtures[i].matrices if i in self.mixtures else super().mlp_matrices(i)

    def expert_stacks(self) -> list[ExpertStack]:
        return [stack for mixture in self.mixtures.values() for stack in mixture.stacks]

    # ---- the pass ---------------------------------------------------------------------------

    def mlp(self, run: Pass, i: int) -> None:
        of, work, capture = self.config.experts_of(i), run.work.experts, run.instruments.capture
        if of is None or work is None:
            super().mlp(run, i)
            return
        routed = run.instruments.routed
        routing = capture.routing(i) if capture and capture.routing else work.routing
        if routed:
            routing = routed.routing(i)
        name, x = f"layer{i:02}.mlp", run.work.stream.middle(i)
        self.route(run, name, i, of, work, routing, x)
        shared = self.shared(run, name, i, work, x)
        self.products(run, name, i, of, work, routing, x)
        if routed:
            norms = routed.norms(i)
            ops.expert_norms(run.rec, run.batch, f"{name}.norms", of, work.parts, norms)

        def combine(y: Tensor, residual: Tensor | None) -> None:
            ops.combine_experts(
                run.rec, run.batch, f"{name}.combine", of, work.parts, routing, y,
                shared=(shared, work.logits) if shared else None, residual=residual,
            )  # fmt: skip

        run.update(f"{name}.combine", "mlp", i, combine)

    def route(
        self,
        run: Pass,
        name: str,
        i: int,
        of: Experts,
        work: ExpertWork,
        routing: ops.Routing,
        x: Tensor,
    ) -> None:
        """Record which experts each row is given to."""
        rec, batch, norm = run.rec, run.batch, self.layers[i].norms.before_mlp
        router, label = self.mixtures[i].router, f"{name}.router"
        bias = run.bias(label, x, router, norm=norm)
        ops.matmul(rec, batch, label, x, router, work.logits, norm=norm, bias=bias)
        ops.choose_experts(rec, batch, f"{name}.choose", of, work.logits, routing)
        if ops.is_grouped(of, batch.n_rows):
            ops.group_pairs(rec, batch, f"{name}.group", of, routing, work.grouping)

    def shared(self, run: Pass, name: str, i: int, work: ExpertWork, x: Tensor) -> Tensor | None:
        """Record the expert that every row is given to; returns what it gives."""
        mlp, norm = self.mixtures[i].shared, self.layers[i].norms.before_mlp
        if mlp is None or work.shared_gated is None or work.shared is None:
            return None
        rec, batch, gated = run.rec, run.batch, work.shared_gated
        gate_up, down = f"{name}.shared.gate_up", f"{name}.shared.down"
        ops.matmul(
            rec, batch, gate_up, x, mlp.gate_up, gated, norm=norm,
            bias=run.bias(gate_up, x, mlp.gate_up, norm=norm),
            activation=self.config.activation, gated=True,
        )  # fmt: skip
        bias = run.bias(down, gated, mlp.down)
        ops.matmul(rec, batch, down, gated, mlp.down, work.shared, bias=bias)
        return work.shared

    def products(
        self,
        run: Pass,
        name: str,
        i: int,
        of: Experts,
        work: ExpertWork,
        routing: ops.Routing,
        x: Tensor,
    ) -> None:
        """Record what the experts of each row give."""
        rec, batch, mixture, grouping = run.rec, run.batch, self.mixtures[i], work.grouping
        gate_up, down = f"{name}.experts.gate_up", f"{name}.experts.down"
        norm = self.layers[i].norms.before_mlp
        ops.experts(
            rec, batch, gate_up, of, x, mixture.gate_up, mixture.slots, routing, grouping,
            work.gated, norm=norm,
            bias=run.bias_of_pairs(gate_up, of, x, mixture.gate_up, routing, grouping, norm),
            activation=self.config.activation, gated=True,
        )  # fmt: skip
        ops.experts(
            rec, batch, down, of, work.gated, mixture.down, mixture.slots, routing, grouping,
            work.parts, of_pairs=True,
            bias=run.bias_of_pairs(
                down, of, work.gated, mixture.down, routing, grouping, of_pairs=True
            ),
        )  # fmt: skip

    # ---- the checkpoint ---------------------------------------------------------------------

    def load_mlp(self, load: WeightLoader, i: int) -> None:
        of = self.config.experts_of(i)
        if of is None:
            super().load_mlp(load, i)
            return
        name, mlp, hidden = f"layer{i:02}.mlp", f"model.layers.{i}.mlp", self.config.hidden_size
        gates = [(f"{self.module_of(load, mlp)}.gate.weight", of.n)]
        if of.shared_width:
            gates.append((f"{mlp}.shared_expert_gate.weight", 1))
        of_gate_up, of_down = self.expert_sources(load, mlp, of)
        router = load.exact(f"{name}.router", *gates, k=hidden)
        shared = self.load_shared(load, name, mlp, of.shared_width) if of.shared_width else None
        gate_up, down = (
            load.experts(
                f"{name}.experts.{op}", sources, n, k,
                modules=expert_modules(self.config, i, f"mlp.experts.{op}"),
            )
            for op, sources, n, k in (
                ("gate_up", of_gate_up, of.width, hidden), ("down", of_down, hidden, of.width)
            )
        )  # fmt: skip
        places = np.arange(of.n) if gate_up.host is None else np.full(of.n, NOWHERE)
        slots = load.memory.upload(
            f"{name}.experts.slots", places.astype(np.uint32), purpose="work"
        )
        self.mixtures[i] = Mixture(router, gate_up, down, slots, shared)

    def load_shared(self, load: WeightLoader, name: str, mlp: str, width: int) -> Mlp:
        hidden, module = self.config.hidden_size, f"{mlp}.shared_expert"
        gate, up = f"{module}.gate_proj.weight", f"{module}.up_proj.weight"
        return Mlp(
            gate_up=load.interleaved(f"{name}.shared.gate_up", gate, up, width, hidden),
            gate_up_bias=None,
            down=load.matrix(f"{name}.shared.down", f"{module}.down_proj.weight", hidden, width),
            down_bias=None,
        )

    def module_of(self, load: WeightLoader, mlp: str) -> str:
        """`mlp` as this checkpoint calls it."""
        if self.own_module is None or f"{mlp}.gate.weight" in load.checkpoint:
            return mlp
        return mlp.removesuffix("mlp") + self.own_module

    def expert_sources(
        self, load: WeightLoader, mlp: str, of: Experts
    ) -> tuple[list[Sequence[str | Member]], list[Sequence[str | Member]]]:
        """(gate, up) of each expert, and (down,): of a tensor that has them all, or of its own."""
        stacked = f"{mlp}.experts.gate_up_proj"
        if stacked in load.checkpoint:
            down, hidden, two = f"{mlp}.experts.down_proj", self.config.hidden_size, 2 * of.width
            halves = [
                [Member(stacked, e, first, of.width, of.n, two) for first in (0, of.width)]
                for e in range(of.n)
            ]
            wholes = [[Member(down, e, 0, hidden, of.n, hidden)] for e in range(of.n)]
            return [*halves], [*wholes]
        gate, up, down = self.modules
        of_each = [f"{self.module_of(load, mlp)}.experts.{e}" for e in range(of.n)]
        return (
            [(f"{one}.{gate}.weight", f"{one}.{up}.weight") for one in of_each],
            [(f"{one}.{down}.weight",) for one in of_each],
        )
