"""A whole model in NumPy and double precision: the twin of `gpu.models`, for any architecture.

It takes the weights of a runner as they are on the device, so that only the arithmetic is compared;
the checks of single ops compare what an upload makes of known numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.readback import matrix_rows
from gpu.checkpoint.weights import rotary_order
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.formats import hadamard_size, kv_format, pack_block
from gpu.models.layer import Layer, Linear, Mlp, Moe
from gpu.models.rope_tables import rope_cos_sin
from gpu.ops import Norm
from gpu.reference import kv, moe
from gpu.reference import ops as reference
from gpu.reference.ops import Array, AttentionScoring, Epilogue, KvArrays, StepRows
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.webgpu.buffers import Memory, Tensor


class NumpyModel:
    """Forward pass of the model of `runner` over one text, all tokens at once."""

    def __init__(self, runner: WgpuRunner) -> None:
        self.config, self.model = runner.config, runner.model
        self._memory = Memory(runner.gpu)
        self._format = kv_format(runner.pools.dtype)
        self._context = runner.limits.context

    def logits(self, ids: Sequence[int]) -> Array:
        """Return the logits after each token, (len(ids), vocab_size)."""
        config, model = self.config, self.model
        x = self._weight(model.embedding)[list(ids)] * config.embedding_scale
        positions = np.arange(len(ids))
        if model.positions is not None:
            table = self._numbers(model.positions)[:, : config.hidden_size]
            x = reference.position_embedding(x, table, positions)
        blocks = np.arange(blocks_for(len(ids)))
        rows = StepRows(np.zeros(len(ids), np.int64), positions, blocks[None])
        for i, layer in enumerate(model.layers):
            x = self._layer(i, layer, x, rows)
        x = self._norm(x, model.norm)
        epilogue = Epilogue(scale=config.logit_scale, cap=config.final_logit_softcap)
        return reference.matmul(x, self._weight(model.head), epilogue)

    def _layer(self, i: int, layer: Layer, x: Array, rows: StepRows) -> Array:
        attn_out = self._attention(i, layer, self._norm(x, layer.pre_attention), rows)
        update = self.config.residual_scale * self._linear(layer.out, attn_out)
        mid = x + self._norm(update, layer.post_attention)
        normed = self._norm(x if self.config.parallel_residual else mid, layer.pre_mlp)
        if isinstance(layer.ffn, Moe):
            update = self._moe(i, layer.ffn, normed)
        else:
            update = self.config.residual_scale * self._mlp(layer.ffn, normed)
        return mid + self._norm(update, layer.post_mlp)

    def _attention(self, i: int, layer: Layer, x: Array, rows: StepRows) -> Array:
        """Return the heads (n_rows, n_heads · head_dim) of normalised rows."""
        config, d = self.config, self.config.head_dim
        rope, n_blocks = config.rope_of(i), rows.tables.shape[1]
        empty = np.zeros((n_blocks, config.n_kv_heads, BLOCK_TOKENS, d))
        cache = KvArrays(empty, empty.copy())
        cos_sin = np.zeros((self._context, 0, 2))
        if rope is not None:
            cos_sin = rope_cos_sin(config, self._context, rope).astype(np.float64)
        has_qk_norm = layer.qk_norm_gains is not None
        order = self._row_order(config.rope_dim if rope is not None and not has_qk_norm else 0)
        weight = self._weight(layer.qkv.weight)[order]
        bias = None if layer.qkv.bias is None else self._numbers(layer.qkv.bias)[order]
        if layer.qk_norm_gains is None:
            q = reference.qkv(x, weight, cos_sin, rows, cache, config.n_heads, bias=bias)
        else:
            gains = self._numbers(layer.qk_norm_gains)
            projected = reference.matmul(x, weight, Epilogue(bias=bias))
            q = reference.qk_norm_rope(
                projected, gains, cos_sin, rows, cache, config.n_heads, eps=config.norm_eps,
                whole=len(gains) != 2 * d,
            )  # fmt: skip
        scoring = AttentionScoring(
            config.attn_scale, config.attn_logit_softcap, config.sliding_window_of(i)
        )
        out, _ = reference.attention(q, rows, self._stored(cache), scoring)
        return out.reshape(len(x), -1)

    def _row_order(self, rotary_dim: int) -> npt.NDArray[np.intp]:
        """Return the rows of the device's queries, keys and values in the order of their heads."""
        config, d = self.config, self.config.head_dim
        n_rotated = config.n_heads + config.n_kv_heads
        back = np.argsort(rotary_order(d, rotary_dim))
        heads = np.arange((n_rotated + config.n_kv_heads) * d).reshape(-1, d)
        heads[:n_rotated] = heads[:n_rotated][:, back]
        return heads.reshape(-1)

    def _stored(self, cache: KvArrays) -> KvArrays:
        """Return keys and values as they are read back from the cache."""
        format, d = self._format, self.config.head_dim
        turn = kv.hadamard_matrix(d, hadamard_size(d)) if format.hadamard else np.eye(d)

        def stored(storage: str, x: Array) -> Array:
            if storage == "f16":
                return x.astype(np.float16).astype(np.float64)
            if storage == "f32":
                return x.astype(np.float32).astype(np.float64)
            return kv.quantised(storage, x @ turn.T, pack_block(d)) @ turn

        keys, values = format.keys.name, format.values.name
        return KvArrays(stored(keys, cache.keys), stored(values, cache.values))

    def _mlp(self, mlp: Mlp, x: Array) -> Array:
        config = self.config
        is_gated = mlp.up.weight.n == 2 * mlp.down.weight.k
        bias = self._bias(mlp.up)
        hidden = reference.matmul(
            x, self._weight(mlp.up.weight), Epilogue(config.activation, gated=is_gated, bias=bias)
        )
        return self._linear(mlp.down, hidden)

    def _moe(self, i: int, of: Moe, x: Array) -> Array:
        config = self.config.moe_of(i)
        assert config is not None
        logits = self._linear(of.router, x)
        ids, gates = moe.moe_topk(
            logits[:, : config.n_experts], config.experts_per_token, config.norm_topk_prob
        )
        gate_up, down = (
            self._weight(stack.matrix).reshape(config.n_experts, -1, stack.matrix.k)
            for stack in of.stacks
        )
        epilogue = Epilogue(self.config.activation, gated=True)
        hidden = moe.moe_matmul(x, gate_up, ids, epilogue)
        out = moe.moe_matmul(hidden, down, ids, per_assignment=True)
        if of.shared is None:
            return moe.moe_combine(out, gates)
        shared = self._mlp(of.shared, x)
        return moe.moe_combine(out, gates, shared=shared, logit=logits[:, config.n_experts])

    def _norm(self, x: Array, norm: Norm | None) -> Array:
        """Return norm(x); x itself where the architecture has none."""
        if norm is None:
            return x
        n = x.shape[1]
        bias = None if norm.bias is None else self._numbers(norm.bias)[:n]
        gain = self._numbers(norm.gain)[:n]
        return reference.norm(x, gain, norm.eps, centred=norm.centred, bias=bias)

    def _linear(self, linear: Linear, x: Array) -> Array:
        epilogue = Epilogue(bias=self._bias(linear))
        return reference.matmul(x, self._weight(linear.weight), epilogue)

    def _bias(self, linear: Linear) -> Array | None:
        return None if linear.bias is None else self._numbers(linear.bias)[: linear.weight.n]

    def _weight(self, matrix: Matrix) -> Array:
        """Return the numbers (n, k) of a matrix on the device."""
        return matrix_rows(matrix, self._memory).astype(np.float64)

    def _numbers(self, tensor: Tensor) -> Array:
        return self._memory.read(tensor).astype(np.float64)
