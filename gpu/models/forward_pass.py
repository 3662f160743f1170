"""What the passes of all architectures have in common while they are recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpu import ops
from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.config import Experts, ModelConfig
from gpu.kv.pools import KvPools
from gpu.models.workspace import Instruments, Workspace
from gpu.ops import Batch, Norm
from gpu.ops.step_buffer import MAX_ROWS
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Recorder


@dataclass(frozen=True, slots=True)
class Pass:
    """One recording: where its dispatches go, what they work on, what watches them."""

    rec: Recorder
    batch: Batch
    config: ModelConfig
    work: Workspace
    pools: KvPools
    instruments: Instruments

    def attend(self, name: str, i: int) -> Tensor:
        """Attention of layer i with the queries in `work.q` over the cache: what its heads give,
        one behind the other."""
        rec, batch, config, work = self.rec, self.batch, self.config, self.work
        weights, capture = self.instruments.weights, self.instruments.capture
        if weights:
            ops.attention_weights(
                rec, batch, f"{name}.weights", config, work.q, self.pools, i, weights.keys,
                weights.layer(i),
            )  # fmt: skip
        ops.attention(
            rec, batch, f"{name}.attention", config, work.q, self.pools, i, work.attended,
            capture.entropy(i) if capture else None,
        )  # fmt: skip
        if reached := self.instruments.reached:
            factors = reached.heads(i)
            ops.scale_heads(rec, batch, f"{name}.heads", config, factors, work.attended)
        return work.attended

    def bias(
        self,
        label: str,
        x: Tensor,
        weight: Matrix,
        bias: Tensor | None = None,
        norm: Norm | None = None,
    ) -> Tensor | None:
        """What is added to [norm](x) · weightᵀ: the bias of the model, or, where the pass has
        adapters for this matrix, a bias of each row with what they add, computed now."""
        adapted = self.instruments.adapted
        low = adapted.of.get(weight.name) if adapted else None
        if adapted is None or low is None:
            return bias
        rec, batch = self.rec, self.batch
        shrunk = replace(adapted.shrunk, shape=(MAX_ROWS, padded(low.a.n)))
        added = replace(adapted.added, shape=(MAX_ROWS, low.b.shape[-1]))
        ops.matmul(rec, batch, f"{label}.lora_a", x, low.a, shrunk, norm=norm)
        ops.lora_expand(
            rec, batch, f"{label}.lora_b", shrunk, low.b, low.first, low.ends, adapted.strengths,
            bias, added,
        )  # fmt: skip
        return added

    def bias_of_pairs(
        self,
        label: str,
        of: Experts,
        x: Tensor,
        weight: ExpertStack,
        routing: ops.Routing,
        grouping: ops.Grouping,
        norm: Norm | None = None,
        *,
        of_pairs: bool = False,
    ) -> Tensor | None:
        """As `bias`, of every pair of a row and an expert, for `ops.experts` of the same."""
        adapted = self.instruments.adapted
        low = adapted.of_experts.get(weight.matrix.name) if adapted else None
        if adapted is None or low is None:
            return None
        rec, batch, n_pairs = self.rec, self.batch, MAX_ROWS * of.per_token
        shrunk = replace(adapted.shrunk, shape=(n_pairs, padded(low.a.n)))
        added = replace(adapted.added, shape=(n_pairs, low.b.shape[-1]))
        ops.experts(
            rec, batch, f"{label}.lora_a", of, x, low.a, low.slots, routing, grouping, shrunk,
            norm=norm, of_pairs=of_pairs,
        )  # fmt: skip
        ops.lora_expand(
            rec, batch, f"{label}.lora_b", shrunk, low.b, low.first, low.ends, adapted.strengths,
            None, added, experts=of, chosen=routing.chosen,
        )  # fmt: skip
        return added

    def add(
        self,
        label: str,
        part: str,
        i: int,
        x: Tensor,
        weight: Matrix,
        bias: Tensor | None = None,
        norm: Norm | None = None,
    ) -> None:
        """What a part of layer i, of `ops.PARTS`, adds to the residual stream:

        after = before + [factor ·] scale · [norm](x · weightᵀ [+ bias])

        `norm` needs room for what comes before it in `work.scratch["update"]`.
        """
        rec, batch, scale = self.rec, self.batch, self.config.residual_scale
        bias = self.bias(label, x, weight, bias)

        def record(y: Tensor, residual: Tensor | None) -> None:
            if norm is None:
                ops.matmul(
                    rec, batch, label, x, weight, y, bias=bias, scale=scale, residual=residual
                )
                return
            update = self.work.scratch["update"]
            ops.matmul(rec, batch, label, x, weight, update, bias=bias, scale=scale)
            width = self.config.hidden_size
            ops.norm(rec, batch, f"{label}.norm", norm, width, update, y, residual=residual)

        self.update(label, part, i, record)

    def update(
        self, label: str, part: str, i: int, record: Callable[[Tensor, Tensor | None], None]
    ) -> None:
        """after = before + [factor ·] update, of a part of layer i of `ops.PARTS`. `record(y,
        residual)` records y = [residual +] update; the factor is that of an intervention."""
        stream, reached = self.work.stream, self.instruments.reached
        before = stream.before(i) if part == "attention" else stream.middle(i)
        after = stream.middle(i) if part == "attention" else stream.before(i + 1)
        if reached is None:
            record(after, before)
            return
        record(reached.update, None)
        rec, batch, factors = self.rec, self.batch, reached.updates(i)
        ops.scale_update(rec, batch, f"{label}.scale", part, before, reached.update, factors, after)
