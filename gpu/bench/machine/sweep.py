"""Matrix products of the sizes of known models, on weights that no cache holds.

A plan multiplies by several copies of a weight in turn, `ROTATED_BYTES` in all. GB/s count the
bytes of a weight once, as a decode step reads them; GFLOP/s count a multiply-add as two.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from gpu import ops
from gpu.bench.machine.context import Case, Context, Outcome, left_out, rounded
from gpu.bench.machine.results import TIME_IS_UP
from gpu.bench.machine.timing import PlanTimer
from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.packing import pack, row_words
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES
from gpu.checkpoint.weights import WeightLoader
from gpu.checks.rig import Array, Arrays, plain_rows
from gpu.config import ModelConfig
from gpu.webgpu.buffers import Memory, padded
from gpu.webgpu.plan import Recorder

ROTATED_BYTES = 256 << 20
"""Bytes of the copies of one weight together: more than the caches of GPUs."""
FREE_SHARE = 4
"""The copies take at most this part of the free memory."""
ROWS = (1, 8, 64, 512)
BASE_ROWS = 64
"""Random rows that are packed once and repeated."""
RUNS = 6
"""How often a product runs at least: to compile, to guess, to measure."""
TOO_LONG_S = 8.0
"""Products that would take longer together are left out."""
LONGEST_PASS_S = 0.5
"""A pass that would take longer uses fewer copies: it computes more than it loads."""
ORDER = (
    ("smol135", "f16"), ("llama1b", "f16"), ("llama8b", "q4"), ("llama1b", "q4"),
    ("llama1b", "q8"), ("llama8b", "q8"), ("smol135", "q8"), ("smol135", "q4"), ("llama8b", "f16"),
)  # fmt: skip


def cases(context: Context) -> Iterator[Case]:
    yield "peaks", partial(measure_peaks, context)
    for shape, dtype in ORDER:
        for name, (n, k) in matrices(LLAMA_SHAPES[shape]).items():
            yield f"{shape} {name} {dtype}", partial(measure, context, dtype, n, k)


def matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of the matrices of a Llama, by name."""
    hidden, inner, d = config.hidden_size, config.intermediate_size, config.head_dim
    return {
        "qkv": ((config.n_heads + 2 * config.n_kv_heads) * d, hidden),
        "out": (hidden, config.n_heads * d),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (config.vocab_size, hidden),
    }


def measure_peaks(context: Context) -> Outcome:
    peaks = context.peaks
    return Outcome(
        {
            "memory_gb_s": rounded(peaks.bytes_per_s / 1e9),
            "read_bytes": peaks.read_bytes,
            "fma_gflop_s": rounded(peaks.flops_per_s / 1e9),
        }
    )


def measure(context: Context, dtype: str, n: int, k: int) -> Outcome:
    """Return GB/s, GFLOP/s and milliseconds of a product for each number of rows."""
    n_bytes = 4 * n * row_words(dtype, k)
    room = ROTATED_BYTES if context.free is None else context.free // FREE_SHARE
    if n_bytes > max(room, ROTATED_BYTES):
        return left_out(f"the weight takes {n_bytes / 1e6:.0f} MB, too much of the free memory")
    n_copies = max(1, min(-(-ROTATED_BYTES // n_bytes), room // n_bytes))
    timer = MatmulTimer(context, dtype, (n, k), n_copies)
    figures = {"rotated_mb": rounded(n_copies * n_bytes / 1e6)}
    too_long, seconds, last = list[str](), 0.0, 1
    for n_rows in ROWS:
        if n_rows > context.device.policy.max_rows:
            continue
        flops = 2.0 * n * k * n_rows
        guess = max(context.seconds_for(n_bytes, flops), seconds * n_rows / last / 2)
        if guess * RUNS > min(TOO_LONG_S, max(context.seconds_left, 0.0)):
            too_long.append(f"{n_rows} rows")
            continue
        context.say(f"{n_rows} rows")
        seconds, last = timer.seconds(n_rows, max(1, int(LONGEST_PASS_S / guess))), n_rows
        figures[f"ms_{n_rows}"] = rounded(1e3 * seconds)
        figures[f"gb_s_{n_rows}"] = rounded(n_bytes / seconds / 1e9)
        figures[f"gflop_s_{n_rows}"] = rounded(flops / seconds / 1e9)
    share = figures.get("gb_s_1", 0.0) * 1e9 / context.bytes_per_s
    if share:
        figures["of_bandwidth"] = rounded(share, 2)
    if not share:
        return Outcome({}, "pending", TIME_IS_UP)
    note = f"without {', '.join(too_long)}, which would take too long" if too_long else ""
    return Outcome(figures, "ok", note)


class MatmulTimer:
    """Times y = x · weightᵀ for several copies of one weight in turn."""

    def __init__(self, context: Context, dtype: str, size: tuple[int, int], n_copies: int) -> None:
        n, k = size
        most = context.device.policy.max_rows
        self._timer = PlanTimer(context.device)
        memory = self._timer.memory
        with _RepeatedLoader(memory, dtype, n, k) as load:
            self._weights: list[Matrix] = []
            for i in range(n_copies):
                context.say("uploading weights")
                self._weights.append(load.matrix(f"sweep{i}", "w", n, k))
        x = np.zeros((most, padded(k)), np.float32)
        x[:, :k] = np.random.default_rng(1).standard_normal((most, k), np.float32)
        self._x = memory.upload("sweep.x", x, purpose="work")
        self._y = memory.zeros("sweep.y", (most, padded(n)))

    def seconds(self, n_rows: int, most: int = 1 << 30) -> float:
        """Return the seconds of one product, measured with at most so many of the copies."""
        batch, weights = self._timer.batch(plain_rows(n_rows)), self._weights[:most]

        def record(rec: Recorder) -> None:
            for weight in weights:
                ops.matmul(rec, batch, weight.name, self._x, weight, self._y)

        return self._timer.seconds(record) / len(weights)


class _RepeatedRows(Arrays):
    """A matrix (n, k) whose random rows repeat."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__({"w": np.broadcast_to(np.float32(0), (n, k))})
        rows = np.random.default_rng(0).standard_normal((BASE_ROWS, k), np.float32)
        self.base: Array = rows * np.float32(k**-0.5)

    def read_into(
        self, out: Array, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> None:
        for first in range(0, len(out), BASE_ROWS):
            part = out[first : first + BASE_ROWS]
            part[...] = self.base[: len(part)]


class _RepeatedLoader(WeightLoader):
    """Loads a matrix whose random rows repeat and are packed once: packing them all would take
    longer than the measurement."""

    packs_on_device = False

    def __init__(self, memory: Memory, dtype: str, n: int, k: int) -> None:
        source = _RepeatedRows(n, k)
        super().__init__(source, memory, dtype)
        self._base = pack(dtype, source.base)

    def pack(
        self, dtype: str, rows: npt.NDArray[np.float32], name: str, out: npt.NDArray[np.uint32]
    ) -> None:
        for first in range(0, len(out), BASE_ROWS):
            part = out[first : first + BASE_ROWS]
            part[...] = self._base[: len(part)]
