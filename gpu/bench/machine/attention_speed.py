"""Time of attention by context: one row, as in decoding, and the last chunk of a prompt.

Every layer of the model reads its own cache in turn. The contents of a cache do not affect the
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gpu import ops
from gpu.bench.machine.context import Case, Context, Outcome, left_out, rounded
from gpu.bench.machine.results import TIME_IS_UP
from gpu.bench.machine.timing import PlanTimer
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES
from gpu.checks.rig import rows_at
from gpu.config import ModelConfig
from gpu.kv.blocks import KvShape, block_bytes, blocks_for
from gpu.kv.pools import KvPools
from gpu.ops import KvSplits
from gpu.webgpu.buffers import padded
from gpu.webgpu.plan import Recorder

CACHE_BYTES = 256 << 20
"""Bytes of the caches of all layers together, if the model's layers need so many."""
ORDER = (
    ("llama1b", "f16"), ("llama8b", "f16"), ("llama8b", "q8"), ("smol135", "f16"),
)  # fmt: skip
CONTEXTS = (128, 1024, 4096, 16384)
TOO_LONG_S = 8.0


def cases(context: Context) -> Iterator[Case]:
    for n_tokens in CONTEXTS:
        for shape, kv_dtype in ORDER:
            name = f"{shape} {kv_dtype} cache, {n_tokens:,} tokens"
            yield name, partial(measure, context, shape, kv_dtype, n_tokens)


def measure(context: Context, shape: str, kv_dtype: str, n_tokens: int) -> Outcome:
    """Return milliseconds of a layer's attention and GB/s of its keys and values."""
    config = LLAMA_SHAPES[shape]
    n_bytes = blocks_for(n_tokens) * block_bytes(replace(config, n_layers=1), kv_dtype)
    n_layers = max(1, min(config.n_layers, -(-CACHE_BYTES // n_bytes)))
    flops = 4.0 * config.n_heads * config.head_dim * n_tokens
    n_rows = min(context.device.policy.max_rows, n_tokens)
    limit = min(TOO_LONG_S, max(0.0, context.seconds_left))
    need = 3 * n_layers * context.seconds_for(n_bytes, flops)
    if need > TOO_LONG_S:
        return left_out("it would take too long")
    if need > limit:
        return Outcome({}, "pending", TIME_IS_UP)
    timer = _AttentionTimer(context, replace(config, n_layers=n_layers), kv_dtype, n_tokens)
    seconds = timer.seconds(1)
    figures = {
        "ms_1": rounded(1e3 * seconds),
        "gb_s_1": rounded(n_bytes / seconds / 1e9),
        "of_bandwidth": rounded(n_bytes / seconds / context.bytes_per_s, 2),
    }
    if 3 * n_layers * context.seconds_for(n_bytes, flops * n_rows) > limit:
        return Outcome(figures, "ok", f"without {n_rows} rows, which would take too long")
    context.say(f"{n_rows} rows")
    seconds = timer.seconds(n_rows)
    figures["rows"] = n_rows
    figures["ms_rows"] = rounded(1e3 * seconds)
    figures["gflop_s_rows"] = rounded(flops * n_rows / seconds / 1e9)
    return Outcome(figures)


class _AttentionTimer:
    """Times the attention of all layers over one sequence of `n_tokens`."""

    def __init__(self, context: Context, config: ModelConfig, kv_dtype: str, n_tokens: int) -> None:
        self._timer = PlanTimer(context.device)
        self._config, self._n_tokens = config, n_tokens
        memory, most = self._timer.memory, context.device.policy.max_rows
        self._split_rows = context.device.policy.split_rows
        shape = KvShape(blocks_for(n_tokens), n_tokens)
        self._pools = KvPools(config, shape, kv_dtype, 1, memory)
        self._pools.set_blocks(0, list(range(shape.n_blocks)))
        width = padded(config.n_heads * config.head_dim)
        self._q, self._out = (memory.zeros(name, (most, width)) for name in ("q", "out"))
        n_splits = 1 << (-(-n_tokens // context.device.policy.kv_split_size) - 1).bit_length()
        self._splits = KvSplits.make(config, n_splits, memory) if n_splits > 1 else None

    def seconds(self, n_rows: int) -> float:
        """Return the seconds of one layer for the last rows of the sequence."""
        batch = self._timer.batch(rows_at(range(self._n_tokens - n_rows, self._n_tokens)))
        if n_rows <= self._split_rows:
            batch = replace(batch, splits=self._splits)

        def record(rec: Recorder) -> None:
            for i in range(self._config.n_layers):
                ops.attention(
                    rec, batch, f"layer{i}", self._config, self._q, self._pools, i, self._out
                )

        return self._timer.seconds(record) / self._config.n_layers
