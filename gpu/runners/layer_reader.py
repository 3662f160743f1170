"""Activations of one token in one layer, read back between the layers of a step.

The plan `unfused` is the same pass with further dispatches that compute, from the same weights,
what fused dispatches keep in registers: the normed inputs, queries and keys before RoPE, gate and
up. It is run to the end of the layer and read, then to its own end, so that every layer has the
token's key and value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.weights import rotary_order
from gpu.kv.blocks import BLOCK_TOKENS
from gpu.kv.formats import KV_STORAGES, hadamard_size, pack_block
from gpu.kv.pools import KvPools
from gpu.models.decoder import Decoder
from gpu.models.layer import Mlp
from gpu.models.workspace import Unfused
from gpu.plans.plan_cache import PlanCache
from gpu.reference import kv
from gpu.runners.step_queue import StepQueue
from gpu.step import Floats, LayerActivations, Row, Step
from gpu.webgpu.buffers import Memory, Tensor


class LayerReader:
    """Reads activations of one model. No steps may be in flight."""

    def __init__(
        self, model: Decoder, pools: KvPools, plans: PlanCache, queue: StepQueue, memory: Memory
    ) -> None:
        self._model, self._config = model, model.config
        self._pools, self._plans, self._queue, self._memory = pools, plans, queue, memory

    def read(self, step: Step, i: int, head: int, received: Floats | None) -> LayerActivations:
        """Run `step`, which has one row, and return its activations in layer i, with the keys and
        values that `head` reads. `received`: as in `StepQueue.submit`."""
        (row,) = step.rows
        recorded = self._plans.plan(
            1, 0, "unfused", step.context, step.interventions, step.loras, masked=step.masked
        )
        states, unfused = recorded.instruments.states, recorded.instruments.unfused
        assert states is not None
        assert unfused is not None
        marks = [name for _, name in recorded.plan.marks]
        end = marks.index(f"{self._config.layer_name(i)}.mlp") + 1
        self._queue.run_segments(recorded, step, slice(0, end), received)
        q, k, v = self._projections(unfused, i)
        attn_out = self._heads(self._plans.workspace.attn_out)
        layer, stream = self._model.layers[i], states.stream
        gate, up, ffn_hidden = self._mlp(unfused, i)
        first_key, keys, values = self._cached(row, i, head)
        found = LayerActivations(
            resid_pre=self._vector(stream.resid_pre(i)),
            resid_mid=self._vector(stream.resid_mid(i)),
            resid_post=self._vector(stream.resid_pre(i + 1)),
            attn_norm=self._vector(unfused.attn_norm) if layer.pre_attention else None,
            mlp_norm=self._vector(unfused.mlp_norm) if layer.pre_mlp else None,
            q=q,
            k=k,
            v=v,
            rot_q=self._inverse_hadamard(self._heads(self._plans.workspace.q)),
            keys=keys,
            values=values,
            first_key=first_key,
            attn_out=attn_out,
            head_out=self._head_out(row, i, attn_out),
            has_post_norms=layer.post_attention is not None,
            gate=gate,
            up=up,
            ffn_hidden=ffn_hidden,
        )
        self._queue.run_segments(recorded, step, slice(end, None), received)
        return found

    def _row(self, tensor: Tensor, width: int) -> Floats:
        """Return the first `width` numbers of the first row of a tensor."""
        stride = tensor.shape[-1]
        row: Floats = self._memory.read(replace(tensor, shape=(stride,), n_bytes=4 * stride))
        return row[:width]

    def _vector(self, tensor: Tensor) -> Floats:
        return self._row(tensor, self._config.hidden_size)

    def _heads(self, tensor: Tensor) -> Floats:
        """Return the first row of a tensor as (n_heads, head_dim)."""
        n_heads, head_dim = self._config.n_heads, self._config.head_dim
        return self._row(tensor, n_heads * head_dim).reshape(n_heads, head_dim)

    def _projections(self, unfused: Unfused, i: int) -> tuple[Floats, Floats, Floats]:
        """Return queries, keys and values (n, head_dim) in the order of the model file: the device
        has the rows of rotated heads in `rotary_order`."""
        config = self._config
        n_q, n_kv, head_dim = config.n_heads, config.n_kv_heads, config.head_dim
        found = self._row(unfused.qkv, (n_q + 2 * n_kv) * head_dim).reshape(-1, head_dim)
        q, k, v = np.split(found, [n_q, n_q + n_kv])
        if self._model.rope(i) is None or self._model.layers[i].qk_norm_gains is not None:
            return q, k, v
        back = np.argsort(rotary_order(head_dim, config.rope_dim))
        return q[:, back], k[:, back], v

    def _mlp(self, unfused: Unfused, i: int) -> tuple[Floats | None, Floats | None, Floats | None]:
        """Return gate, up and hidden activations of the MLP, as far as it has them."""
        ffn, inner = self._model.layers[i].ffn, self._config.intermediate_size
        if not isinstance(ffn, Mlp):
            return None, None, None
        hidden = self._row(self._plans.workspace.ffn_hidden, inner)
        if ffn.up.weight.n == inner:
            return None, self._row(unfused.up, inner), hidden
        gate_up = self._row(unfused.gate_up, 2 * inner)
        return gate_up[::2], gate_up[1::2], hidden

    def _head_out(self, row: Row, i: int, attn_out: Floats) -> Floats:
        """Return what the output projection of layer i makes of each head (n_heads, width): one row
        of the matmul for each, in which the other heads are 0. Overwrites `attn_out` on the
        device."""
        n_heads, to = self._config.n_heads, self._plans.workspace.attn_out
        recorded = self._plans.plan(n_heads, 0, "head_out")
        unfused = recorded.instruments.unfused
        assert unfused is not None
        rows = np.zeros((n_heads, to.shape[-1]), np.float32)
        for head, values in enumerate(attn_out):
            rows[head, head * len(values) : (head + 1) * len(values)] = values
        self._memory.write(to, rows)
        self._queue.run_segments(recorded, Step((row,) * n_heads), slice(i, i + 1))
        found: Floats = self._memory.read(unfused.head_out)[:, : self._config.hidden_size]
        return found

    # ---- the KV cache -----------------------------------------------------------------------

    def _cached(self, row: Row, i: int, head: int) -> tuple[int, Floats, Floats]:
        """Return the position of the first key that a row sees in layer i, and keys and values of
        the key/value head of `head` from there to the row's own, (n_keys, head_dim) each."""
        window = self._config.sliding_window_of(i)
        first = max(0, row.position + 1 - window) if window else 0
        kv_head = head * self._config.n_kv_heads // self._config.n_heads
        blocks = self._pools.blocks[self._pools.group_of(i)][row.slot]
        within = blocks[first // BLOCK_TOKENS : row.position // BLOCK_TOKENS + 1]
        skipped = first % BLOCK_TOKENS
        keys, values = (
            np.concatenate([self._blocks(pool, at, n, kv_head) for at, n in _consecutive(within)])
            for pool in (self._pools.keys[i], self._pools.values[i])
        )
        n_keys = row.position + 1 - first
        return first, keys[skipped:][:n_keys], values[skipped:][:n_keys]

    def _blocks(self, pool: Tensor, at: int, n: int, kv_head: int) -> Floats:
        """Return what attention reads of a head in `n` blocks from block `at` on, (n ·
        BLOCK_TOKENS, head_dim), as float32."""
        n_blocks, n_heads, n_tokens, head_dim = pool.shape
        n_bytes = pool.n_bytes // n_blocks
        part = replace(
            pool,
            shape=(n, n_heads, n_bytes // n_heads // 4),
            dtype="u32",
            offset=pool.offset + at * n_bytes,
            n_bytes=n * n_bytes,
        )
        words = np.ascontiguousarray(self._memory.read(part)[:, kv_head])
        storage = KV_STORAGES[pool.dtype]
        if not storage.packed:
            floats = words.view(np.float16 if storage.bits == 16 else np.float32)
            return floats.reshape(-1, head_dim).astype(np.float32)
        size = pack_block(head_dim)
        codes, scales = kv.unpack(storage.name, words, n_tokens, head_dim, size)
        found = kv.decode(storage.name, codes, size, scales).reshape(-1, head_dim)
        return self._inverse_hadamard(found)

    def _inverse_hadamard(self, x: npt.NDArray[Any]) -> Floats:
        """Return heads (…, head_dim) as they were before the cache's transform, if it has one."""
        if not self._pools.format.hadamard:
            return x.astype(np.float32)
        head_dim = self._config.head_dim
        matrix = kv.hadamard_matrix(head_dim, hadamard_size(head_dim))
        return kv.inverse_hadamard(x, matrix).astype(np.float32)


def _consecutive(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive numbers in `blocks`, in order: the first of a run, and how many."""
    for _, run in itertools.groupby(enumerate(blocks), lambda place: place[1] - place[0]):
        numbers = [block for _, block in run]
        yield numbers[0], len(numbers)
