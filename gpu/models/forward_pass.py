"""Operations of which the forward passes in this folder consist: each takes tensors, records its
dispatches and returns the tensor that they write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpu import ops
from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.config import ModelConfig, MoeConfig
from gpu.kv.pools import KvPools
from gpu.models.layer import Linear
from gpu.models.workspace import NO_INSTRUMENTS, Instruments, ResidualStream, Workspace
from gpu.ops import Batch, Norm
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Recorder


@dataclass(frozen=True, slots=True)
class Pass:
    """One recording of a forward pass.

    tokens       (n_slots,) u32: the token last sampled in each slot
    work         buffers of activations; a method returns one of them, valid until the next layer
    instruments  what is captured, intervened on and adapted; without any, only the model's own
                 dispatches are recorded

    Dispatches are labelled with the name of the weight they read, e.g. layer03.attn.qkv.
    """

    rec: Recorder
    batch: Batch
    config: ModelConfig
    work: Workspace
    pools: KvPools
    tokens: Tensor
    instruments: Instruments = NO_INSTRUMENTS

    # ---- the residual stream ----------------------------------------------------------------

    def embed(self, embedding: Matrix, positions: Tensor | None = None) -> Tensor:
        """Return the embeddings of the rows' tokens, times `config.embedding_scale`; `positions`
        (context, width): learned vectors to add by position."""
        rec, batch, x = self.rec, self.batch, self._stream.resid_pre(0)
        scale = self.config.embedding_scale
        ops.embed(rec, batch, "embed", embedding, self.tokens, x, scale=scale)
        if positions is not None:
            ops.position_embedding(rec, batch, "positions", positions, x)
        rec.mark("embed")
        return x

    @property
    def received(self) -> Tensor:
        """Where the rows that the stage before has sent are written."""
        return self._stream.resid_pre(0)

    def receive(self) -> Tensor:
        """Return the residual stream before the first layer of a stage that is not the first: the
        host writes it before the step."""
        self.rec.mark("receive")
        return self.received

    def resid_pre(self, i: int, x: Tensor) -> Tensor:
        """Return the residual stream that layer i reads: x, steered or patched."""
        if interventions := self.instruments.interventions:
            vectors, keeps = interventions.vectors(i), interventions.keeps(i)
            ops.steer(self.rec, self.batch, f"{self.config.layer_name(i)}.steer", vectors, keeps, x)
        return x

    def add_residual(
        self, i: int, sublayer: str, x: Tensor, y: Tensor, out: Linear, norm: Norm | None = None
    ) -> Tensor:
        """Return x + [factor ·] [norm](residual_scale · out(y)), the residual stream after a
        sublayer of layer i, of `ops.SUBLAYERS`. A norm needs `work.scratch["update"]`."""
        rec, batch, scale, label = self.rec, self.batch, self.config.residual_scale, out.name
        bias = self.lora_bias(out, y)

        def record(into: Tensor, residual: Tensor | None) -> None:
            if norm is None:
                ops.matmul(
                    rec, batch, label, y, out.weight, into, bias=bias, scale=scale,
                    residual=residual,
                )  # fmt: skip
                return
            update, width = self.work.scratch["update"], self.config.hidden_size
            ops.matmul(rec, batch, label, y, out.weight, update, bias=bias, scale=scale)
            ops.norm(rec, batch, f"{label}.norm", norm, width, update, into, residual=residual)

        return self.add_update(i, sublayer, label, x, record)

    def add_update(
        self,
        i: int,
        sublayer: str,
        label: str,
        x: Tensor,
        record: Callable[[Tensor, Tensor | None], None],
    ) -> Tensor:
        """Return x + [factor ·] update, where `record(y, residual)` records y = [residual +]
        update and the factor is that of an intervention on the sublayer."""
        stream, interventions = self._stream, self.instruments.interventions
        after = stream.resid_mid(i) if sublayer == "attention" else stream.resid_pre(i + 1)
        if interventions is None:
            record(after, x)
        else:
            update, factors = interventions.update, interventions.updates(i)
            record(update, None)
            ops.scale_residual(
                self.rec, self.batch, f"{label}.scale", sublayer, x, update, factors, after
            )
        self.rec.mark(f"{self.config.layer_name(i)}.{sublayer}")
        return after

    # ---- attention --------------------------------------------------------------------------

    def qkv(
        self, i: int, qkv: Linear, x: Tensor, *, norm: Norm | None = None, rope: Tensor | None
    ) -> Tensor:
        """Return the queries of [norm](x), rotated by `rope` (None: no positions); keys and values
        go to the cache of layer i."""
        self._unfused_qkv(qkv, x, norm)
        q, batch = self.work.q, self.batch.of_group(self.pools.group_of(i))
        ops.qkv(
            self.rec, batch, qkv.name, self.config, x, qkv.weight, rope, self.pools, i, q,
            norm=norm, bias=self.lora_bias(qkv, x, norm),
        )  # fmt: skip
        return q

    def kv(self, i: int, kv: Linear, x: Tensor) -> None:
        """Write the keys and values of x to the cache of layer i."""
        ops.qkv(self.rec, self.batch, kv.name, self.config, x, kv.weight, None, self.pools, i, None)

    def qkv_with_norms(
        self,
        i: int,
        qkv: Linear,
        gains: Tensor,
        x: Tensor,
        *,
        norm: Norm | None = None,
        rope: Tensor | None,
    ) -> Tensor:
        """Do `qkv` with an RMSNorm of queries and keys before RoPE: of each head, or of all heads
        as one row if `gains` is that long."""
        self._unfused_qkv(qkv, x, norm)
        projected = self.linear(qkv, x, self.work.scratch["projected"], norm=norm)
        q, label = self.work.q, f"{self.config.layer_name(i)}.attn.qk_norm_rope"
        batch = self.batch.of_group(self.pools.group_of(i))
        ops.qk_norm_rope(
            self.rec, batch, label, self.config, projected, gains, rope, self.pools, i, q,
            whole=gains.shape[-1] != 2 * self.config.head_dim,
        )  # fmt: skip
        return q

    def attention(
        self, i: int, q: Tensor, position_biases: Tensor | None = None, name: str = "attn"
    ) -> Tensor:
        """Return softmax(q · kᵀ · scale [+ biases]) · v over the cache of layer i, heads side by
        side. `name`: of the sublayer, in labels."""
        rec, batch, config, attn_out = self.rec, self.batch, self.config, self.work.attn_out
        name = f"{self.config.layer_name(i)}.{name}"
        weights, capture = self.instruments.attention, self.instruments.capture
        masked = self.instruments.masked(i) if self.instruments.masked else None
        if (kv := self.instruments.kv) and kv.rounds:
            ops.round_kv(rec, batch, f"{name}.round_kv", config, self.pools, i, kv)
        if weights:
            ops.attention_weights(
                rec, batch, f"{name}.weights", config, q, self.pools, i, weights.keys,
                weights.layer(i), masked, position_biases,
            )  # fmt: skip
        ops.attention(
            rec, batch, f"{name}.attention", config, q, self.pools, i, attn_out,
            capture.entropy(i) if capture else None, masked, position_biases,
        )  # fmt: skip
        if interventions := self.instruments.interventions:
            factors = interventions.heads(i)
            ops.scale_heads(rec, batch, f"{name}.heads", config, factors, attn_out)
        return attn_out

    # ---- norms and products -----------------------------------------------------------------

    def norm(self, label: str, norm: Norm, x: Tensor) -> Tensor:
        """Return norm(x), for products that take no norm of their own (LayerNorm)."""
        normed = self.work.scratch["normed"]
        self.unfused_norm(label, norm, x)
        ops.norm(self.rec, self.batch, label, norm, self.config.hidden_size, x, normed)
        return normed

    def ffn_hidden(
        self, up: Linear, x: Tensor, *, norm: Norm | None = None, gated: bool = False
    ) -> Tensor:
        """Return act(up([norm](x))), or act(gate(…)) · up(…) when `gated`."""
        hidden, activation = self.work.ffn_hidden, self.config.activation
        if unfused := self.instruments.unfused:
            self.unfused_norm(up.name, norm, x)
            self._unfused_linear(up, x, unfused.gate_up if gated else unfused.up, norm)
        return self.linear(up, x, hidden, norm=norm, activation=activation, gated=gated)

    def linear(
        self,
        linear: Linear,
        x: Tensor,
        y: Tensor,
        *,
        norm: Norm | None = None,
        activation: str | None = None,
        gated: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return y, into which [residual +] act(linear([norm](x))) is written; `gated` as in
        `ops.matmul`."""
        bias = self.lora_bias(linear, x, norm)
        ops.matmul(
            self.rec, self.batch, linear.name, x, linear.weight, y, norm=norm, bias=bias,
            activation=activation, gated=gated, residual=residual,
        )  # fmt: skip
        return y

    def logits(self, head: Matrix, x: Tensor, out: Tensor, *, norm: Norm) -> Tensor:
        """Return `out` (n_samples, vocab_size), into which the logits of the sampled rows are
        written: scale · soft_cap(norm(x) · headᵀ)."""
        rec, batch, config = self.rec, self.batch, self.config
        scale, cap = config.logit_scale, config.final_logit_softcap
        if norm.is_rms:
            ops.matmul(
                rec, batch, "head", x, head, out, norm=norm, scale=scale, cap=cap, gather=True
            )
            return out
        normed = self.work.scratch["normed"]
        ops.norm(rec, batch, "head.norm", norm, config.hidden_size, x, normed, gather=True)
        ops.matmul(rec, batch, "head", normed, head, out, scale=scale, cap=cap, gathered=True)
        return out

    def last_hidden(self, norm: Norm, x: Tensor) -> None:
        """Record the final norm of every row, which is kept."""
        out, width = self.instruments.last_hidden, self.config.hidden_size
        assert out is not None
        ops.norm(self.rec, self.batch, "last_hidden", norm, width, x, out)

    def layer_stats(self) -> None:
        """Record the activation statistics (`capture`), after the last layer."""
        states, capture = self.instruments.states, self.instruments.capture
        if states and capture:
            ops.layer_stats(
                self.rec, self.batch, "stats", self.config, states.states, states.mid_states,
                capture.stats,
            )  # fmt: skip

    # ---- parts of fused dispatches ----------------------------------------------------------

    def unfused_norm(self, label: str, norm: Norm | None, x: Tensor) -> None:
        """Record norm(x) alone for the instrument `unfused`; `label`: a dispatch that reads it."""
        unfused = self.instruments.unfused
        if unfused is None or norm is None:
            return
        to = unfused.attn_norm if ".attn." in label else unfused.mlp_norm
        ops.norm(
            self.rec, self.batch, f"{label}.unfused_norm", norm, self.config.hidden_size, x, to
        )

    def _unfused_qkv(self, qkv: Linear, x: Tensor, norm: Norm | None) -> None:
        if unfused := self.instruments.unfused:
            self.unfused_norm(qkv.name, norm, x)
            self._unfused_linear(qkv, x, unfused.qkv, norm)

    def _unfused_linear(self, linear: Linear, x: Tensor, y: Tensor, norm: Norm | None) -> None:
        """Record linear([norm](x)) without what a fused dispatch does to it."""
        bias = self.lora_bias(linear, x, norm)
        ops.matmul(
            self.rec, self.batch, f"{linear.name}.unfused", x, linear.weight, y, norm=norm,
            bias=bias,
        )  # fmt: skip

    # ---- LoRA -------------------------------------------------------------------------------

    def lora_bias(self, linear: Linear, x: Tensor, norm: Norm | None = None) -> Tensor | None:
        """Return the bias of linear([norm](x)): the model's own or, with adapters of this matrix,
        one for each row (rows, n_out) that includes B · A · [norm](x), recorded here."""
        lora = self.instruments.lora
        weights = lora.by_matrix.get(linear.name) if lora else None
        if lora is None or weights is None:
            return linear.bias
        rec, batch, label = self.rec, self.batch, linear.name
        a_out = replace(lora.lora_a_out, shape=(batch.n_rows, padded(weights.a.n)))
        delta = replace(lora.lora_delta, shape=(batch.n_rows, weights.b.shape[-1]))
        ops.matmul(rec, batch, f"{label}.lora_a", x, weights.a, a_out, norm=norm)
        ops.lora_expand(
            rec, batch, f"{label}.lora_b", a_out, weights.b, weights.first, weights.ends,
            lora.strengths, linear.bias, delta,
        )  # fmt: skip
        return delta

    def moe_lora_bias(
        self,
        moe: MoeConfig,
        experts: ExpertStack,
        x: Tensor,
        routing: ops.ExpertRouting,
        permutation: ops.ExpertPermutation,
        *,
        norm: Norm | None = None,
        per_assignment: bool = False,
    ) -> Tensor | None:
        """Return the `lora_bias` of each pair of a row and an expert, for `ops.moe_matmul`."""
        lora, label = self.instruments.lora, experts.matrix.name
        weights = lora.by_expert_matrix.get(label) if lora else None
        if lora is None or weights is None:
            return None
        rec, batch, n_assignments = self.rec, self.batch, self.batch.n_rows * moe.experts_per_token
        a_out = replace(lora.lora_a_out, shape=(n_assignments, padded(weights.a.n)))
        delta = replace(lora.lora_delta, shape=(n_assignments, weights.b.shape[-1]))
        ops.moe_matmul(
            rec, batch, f"{label}.lora_a", moe, x, weights.a, weights.slots, routing, permutation,
            a_out, norm=norm, per_assignment=per_assignment,
        )  # fmt: skip
        ops.lora_expand(
            rec, batch, f"{label}.lora_b", a_out, weights.b, weights.first, weights.ends,
            lora.strengths, None, delta, experts=moe, expert_ids=routing.expert_ids,
        )  # fmt: skip
        return delta

    @property
    def _stream(self) -> ResidualStream:
        """Buffers of the residual stream: one per state in plans that keep them, else two in
        turn."""
        states = self.instruments.states
        return states.stream if states else self.work.stream
