"""Mixture of experts (Shazeer et al. 2017; Jiang et al. 2024) in place of an MLP:

    router          RMSNorm, a logit for each expert
    choose          top-k of the logits, softmax gates
    group           rows of one expert side by side (skipped for few rows)
    experts.gate_up RMSNorm, two projections, silu(gate) · up, of every chosen expert
    experts.down    projection
    combine         weighted sum, added to the residual stream

A layer may have a shared expert, which every row goes through, weighted by the sigmoid of a gate
(Qwen Team 2024): two dispatches more, and one more row of the router.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu import ops
from gpu.config import MoeConfig
from gpu.models.forward_pass import Pass
from gpu.models.layer import Mlp, Moe
from gpu.models.workspace import MoeWorkspace
from gpu.ops import Norm
from gpu.webgpu.buffers import Tensor


def mixture(run: Pass, i: int, weights: Moe, x: Tensor, *, norm: Norm | None) -> Tensor:
    """x + Σ gate · expert(norm(x)) over the experts that layer i chooses for each row."""
    experts = ExpertPass.of(run, i)
    run.unfused_norm(weights.router.name, norm, x)
    experts.route(weights, x, norm)
    shared = experts.shared_expert(weights.shared, x, norm) if weights.shared else None
    experts.run_experts(weights, x, norm)
    return experts.combine(x, shared)


@dataclass(frozen=True, slots=True)
class ExpertPass:
    """The operations of the experts of layer i, recorded into `run`. `routing` holds the experts
    of each row and their gates."""

    run: Pass
    i: int
    moe: MoeConfig
    work: MoeWorkspace
    routing: ops.ExpertRouting

    @classmethod
    def of(cls, run: Pass, i: int) -> ExpertPass:
        moe, work, instruments = run.config.moe_of(i), run.work.moe, run.instruments
        assert moe is not None
        assert work is not None
        routing, capture = work.routing, instruments.capture
        if capture and capture.routing:
            routing = capture.routing(i)
        if instruments.routing_capture:
            routing = instruments.routing_capture.routing(i)
        return cls(run, i, moe, work, routing)

    @property
    def name(self) -> str:
        return f"{self.run.config.layer_name(self.i)}.mlp"

    def route(self, weights: Moe, x: Tensor, norm: Norm | None) -> None:
        """Choose the experts of each row."""
        rec, batch, moe, work = self.run.rec, self.run.batch, self.moe, self.work
        logits = self.run.linear(weights.router, x, work.logits, norm=norm)
        interventions = self.run.instruments.interventions
        experts = interventions.experts if interventions else None
        keeps = experts(self.i) if experts else None
        ops.moe_topk(rec, batch, f"{self.name}.choose", moe, logits, self.routing, keeps)
        if ops.is_permuted(moe, batch.n_rows):
            ops.moe_permute(rec, batch, f"{self.name}.group", moe, self.routing, work.permutation)

    def shared_expert(self, mlp: Mlp, x: Tensor, norm: Norm | None) -> Tensor:
        """Return the output of the shared expert, without its gate."""
        hidden, out, activation = self.work.shared_hidden, self.work.shared_out, self.activation
        assert hidden is not None
        assert out is not None
        self.run.linear(mlp.up, x, hidden, norm=norm, activation=activation, gated=True)
        return self.run.linear(mlp.down, hidden, out)

    def run_experts(self, weights: Moe, x: Tensor, norm: Norm | None) -> None:
        """Write the output of each chosen expert to `work.expert_out`."""
        run, moe, work, routing = self.run, self.moe, self.work, self.routing
        gate_up, down, permutation = weights.gate_up, weights.down, work.permutation
        ops.moe_matmul(
            run.rec, run.batch, gate_up.matrix.name, moe, x, gate_up, weights.slots, routing,
            permutation, work.ffn_hidden, norm=norm, activation=self.activation, gated=True,
            bias=run.moe_lora_bias(moe, gate_up, x, routing, permutation, norm=norm),
        )  # fmt: skip
        ops.moe_matmul(
            run.rec, run.batch, down.matrix.name, moe, work.ffn_hidden, down, weights.slots,
            routing, permutation, work.expert_out, per_assignment=True,
            bias=run.moe_lora_bias(
                moe, down, work.ffn_hidden, routing, permutation, per_assignment=True
            ),
        )  # fmt: skip

    def combine(self, x: Tensor, shared: Tensor | None) -> Tensor:
        """Return x + Σ gate · output of the experts of each row [+ the shared expert's]."""
        run, work, label = self.run, self.work, f"{self.name}.combine"
        if capture := run.instruments.routing_capture:
            norms, label_of_norms = capture.norms(self.i), f"{self.name}.norms"
            ops.moe_expert_norms(
                run.rec, run.batch, label_of_norms, self.moe, work.expert_out, norms
            )

        def record(y: Tensor, residual: Tensor | None) -> None:
            ops.moe_combine(
                run.rec, run.batch, label, self.moe, work.expert_out, self.routing, y,
                shared=(shared, work.logits) if shared else None, residual=residual,
            )  # fmt: skip

        return run.add_update(self.i, "mlp", label, x, record)

    @property
    def activation(self) -> str:
        return self.run.config.activation
