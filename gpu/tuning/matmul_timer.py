"""Times and checks the two matmuls that represent a model when an adapter is tuned.

    decode   1 row     · weightᵀ, weight (N, K)
    prefill  many rows · weightᵀ, weight (N / 4, K)

Weights are random normal numbers, scaled so that results are about 1. Rows are normalised as in a
step of that many rows. N grows until a matmul takes long enough to measure.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from gpu import ops
from gpu.checkpoint.interleaved import interleave, max_shard_rows, rows_interleaved
from gpu.checkpoint.matrix import Matrix, Shard
from gpu.checkpoint.packing import pack, row_words
from gpu.errors import DeviceError
from gpu.ops import Batch, Norm, RmsNormSplit
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.step import Floats, Row, Step
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import BufferCopy, StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Recorder
from gpu.webgpu.tiling import Tile, Tuning
from gpu.webgpu.timestamps import FIRST_MARK, Timestamps

BASE_N = 512
PREFILL_SHARE = 4
SEEN_S = 100e-6
"""Least time of a matmul, well above the cost of a dispatch."""
PASS_S = 2e-3
MOST_REPEATS = 64
"""A pass repeats the matmul for about `PASS_S`, at most this often."""
READBACK_BYTES = 8 * FIRST_MARK
TOLERANCE = 1e-4
"""Two summation orders of K float32 terms of about unit size differ by at most a third of this;
float16 arithmetic would differ by ten times as much."""
Q8_TOLERANCE = 0.05
"""int8 rows differ by 0.006 on average and six times that at most; a missing or wrong block differs
by 0.2."""

Shape = Literal["decode", "prefill"]
SHAPES: tuple[Shape, ...] = ("decode", "prefill")


@dataclass(frozen=True, slots=True)
class MatmulSizes:
    """Sizes of the matmuls. `k`: 8, 16 and 32 parts of split k share its blocks evenly;
    `prefill_rows`; `prefill_n`: columns that the tile is chosen for; `most_copies` of `BASE_N` rows
    of a weight."""

    k: int
    prefill_rows: int
    prefill_n: int
    most_copies: int

    @classmethod
    def of(cls, tuning: Tuning) -> MatmulSizes:
        return COALESCED_SIZES if tuning.coalesced else OTHER_SIZES

    def rows(self, shape: Shape) -> int:
        return 1 if shape == "decode" else self.prefill_rows


OTHER_SIZES = MatmulSizes(
    k=1024, prefill_rows=64, prefill_n=BASE_N // PREFILL_SHARE, most_copies=64
)
COALESCED_SIZES = MatmulSizes(k=2048, prefill_rows=128, prefill_n=1 << 14, most_copies=128)
"""For GPUs: the largest weight, 256 MiB, exceeds their caches, and there are enough workgroups for
the largest shared tiles."""


@dataclass(frozen=True, slots=True)
class MatmulTrial:
    """One matmul with one tile, of float32 or int8 rows. `tuning`: any that gives this tile."""

    shape: Shape
    tile: Tile
    q8: bool
    tuning: Tuning = field(compare=False)

    @classmethod
    def of(cls, shape: Shape, tuning: Tuning) -> MatmulTrial:
        sizes = MatmulSizes.of(tuning)
        n = BASE_N if shape == "decode" else sizes.prefill_n
        may_share, q8 = shape == "prefill", tuning.q8_activations
        tile = tuning.tile(sizes.rows(shape), n, sizes.k // 32, may_share=may_share, q8=q8)
        return cls(shape, tile, tuning.q8_activations, tuning)


@dataclass(slots=True)
class _Matmul:
    """Tensors that trials of one shape share. `expected`: the first trial's result."""

    batch: Batch
    weight: Matrix
    y: Tensor
    repeats: int = 1
    expected: Floats | None = None


class MatmulTimer:
    """Timer of both matmuls on one device, with weights stored as `dtype`.

    `default` is what others are checked against; raises DeviceError if it does not run. `close`
    frees the weight.
    """

    def __init__(self, device: Device, default: Tuning, dtype: str = "f16") -> None:
        self._device = device
        self._dtype = dtype
        self._sizes = MatmulSizes.of(default)
        k = self._sizes.k
        self._kernels = Kernels(device)
        self._calls = open_calls(device)
        self._memory = Memory(device)
        self._timestamps = Timestamps(device, 0) if device.has_timestamps else None
        self._readback = self._calls.readback(READBACK_BYTES, "autotune")
        rng = np.random.default_rng(0)
        x = rng.standard_normal((self._sizes.prefill_rows, k), np.float32)
        self._x = self._memory.upload("autotune.x", x, purpose="work")
        gain = rng.uniform(0.5, 1.5, k).astype(np.float32)
        self._norm = Norm(self._memory.upload("autotune.gain", gain, purpose="work"), 1e-5)
        packed = pack(dtype, rng.standard_normal((BASE_N, k), np.float32) * k**-0.5)
        self._n_interleaved = rows_interleaved(device, dtype, k, BASE_N, 1)
        self._packed = interleave(dtype, k, packed, self._n_interleaved, np.empty_like(packed))
        self._make_matmuls(1)
        self._make_matmuls(self._copies_to_see(MatmulTrial.of("decode", default)))

    def begin(self, trial: MatmulTrial) -> str:
        """Compile and run a trial; return what is wrong with its result, or "". The first trial of
        each shape sets the expected result."""
        matmul = self._matmuls[trial.shape]
        poison = np.full(matmul.y.n_bytes // 4, np.nan, np.float32)
        self._memory.write(matmul.y, poison)
        try:
            self._prepared[trial] = self._prepare(trial, 1)
            self._run(trial)
            result = self._memory.read(matmul.y)
        except DeviceError as error:
            if matmul.expected is None:
                raise
            return str(error)
        if matmul.expected is None:
            matmul.expected = result
            matmul.repeats = _clamped(PASS_S / self._run(trial), MOST_REPEATS)
        self._prepared[trial] = self._prepare(trial, matmul.repeats)
        return fault(result, matmul.expected, Q8_TOLERANCE if trial.q8 else TOLERANCE)

    def seconds(self, trial: MatmulTrial) -> float:
        """Return the seconds of one matmul of a trial that has begun."""
        return self._run(trial) / self._matmuls[trial.shape].repeats

    def multiply_adds(self, shape: Shape) -> int:
        """Return the multiply-adds of one matmul; for decode that is the number of weights."""
        weight = self._matmuls[shape].weight
        return self._sizes.rows(shape) * weight.n * weight.k

    def close(self) -> None:
        self._weight.buffer.destroy()

    def _copies_to_see(self, trial: MatmulTrial) -> int:
        """Return how many copies of `BASE_N` rows take `SEEN_S`."""
        self.begin(trial)
        seconds = min(self.seconds(trial) for _ in range(2))
        fits = max_shard_rows(self._device, self._packed.shape[1], self._n_interleaved) // BASE_N
        self._weight.buffer.destroy()
        return _clamped(SEEN_S / seconds, min(self._sizes.most_copies, fits))

    def _make_matmuls(self, copies: int) -> None:
        """Prepare both matmuls, with a weight of `copies` times `BASE_N` rows."""
        n = BASE_N * copies
        self._weight = self._memory.weights(
            "autotune.weight", n, row_words(self._dtype, self._sizes.k), self._n_interleaved
        )
        for copy in range(copies):
            self._memory.write(self._weight, self._packed, at=copy * self._packed.nbytes)
        self._prepared: dict[MatmulTrial, Any] = {}
        self._matmuls: dict[Shape, _Matmul] = {
            "decode": self._matmul("decode", n),
            "prefill": self._matmul("prefill", n // PREFILL_SHARE),
        }

    def _matmul(self, shape: Shape, n: int) -> _Matmul:
        memory, rows, k = self._memory, self._sizes.rows(shape), self._sizes.k
        step = memory.zeros("autotune.step", (STEP_BYTES // 4,), "u32", uniform=True)
        data = bytearray(STEP_BYTES)
        pack_step(Step((Row(0, 0, 0),) * rows), data, [[0]])
        memory.write(step, np.frombuffer(data, np.uint8))
        parts = RmsNormSplit.make(k, rows, memory)
        shards = (Shard(self._weight, 0, n),)
        return _Matmul(
            replace(Batch(step, rows, 1), rms_norm_split=parts),
            Matrix(
                "autotune.weight", n, k, self._dtype, shards, (), interleaved=self._n_interleaved
            ),
            memory.zeros(f"autotune.{shape}", (rows, n)),
        )

    def _prepare(self, trial: MatmulTrial, repeats: int) -> Any:
        matmul = self._matmuls[trial.shape]
        batch = matmul.batch
        if trial.q8:
            rows = ops.make_quantized_rows(self._memory, [matmul.weight], self._sizes.prefill_rows)
            batch = replace(batch, quantized_rows=rows)
        rec = Recorder(replace(self._device, tuning=trial.tuning), self._kernels)
        ops.matmul(rec, batch, "autotune", self._x, matmul.weight, matmul.y, norm=self._norm)
        dispatches = tuple(dispatch.in_pass for dispatch in rec.plan.dispatches) * repeats
        timing = self._timestamps.timing(FIRST_MARK, 0) if self._timestamps else None
        copies = () if timing else (BufferCopy(matmul.y.buffer, READBACK_BYTES, 0),)
        return self._calls.prepare(StepCommands((dispatches,), copies, timing))

    def _run(self, trial: MatmulTrial) -> float:
        """Return the seconds of the whole pass, by the device's clock if it has one."""
        commands = self._calls.encode(self._prepared[trial], self._readback)
        began = time.perf_counter()
        self._calls.submit(commands, self._readback)
        self._readback.wait()
        seconds = time.perf_counter() - began
        data = self._readback.read(READBACK_BYTES)
        if self._timestamps:
            begin, end = self._timestamps.milliseconds(data, FIRST_MARK, 0)
            if 0 < end - begin < 1e3 * seconds:  # drivers without a working clock leave zeros
                return float(end - begin) / 1e3
        return seconds


def fault(result: Floats, expected: Floats, tolerance: float = TOLERANCE) -> str:
    """Return what is wrong with a result, or ""."""
    error = np.abs(result - expected)
    wrong = ~(error <= tolerance)  # a NaN is wrong
    if not wrong.any():
        return ""
    row, column = (int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{wrong.sum()} of {wrong.size} results are wrong, the first in row {row}, column "
        f"{column}: {result[row, column]:g} instead of {expected[row, column]:g}"
    )


def _clamped(wanted: float, most: int) -> int:
    """Return the smallest power of two that is at least `wanted`, at most `most`."""
    power = 1
    while power < wanted and 2 * power <= most:
        power *= 2
    return power
