"""Times the two products that stand for a model when an adapter is tuned, and checks them.

    decode   1 row  · weightᵀ, weight (N, K)
    prefill  64 rows · weightᵀ, weight (N / 4, K)

Weights of random normal numbers, scaled so that results are about 1, of rows that are normalised as
a step of so many has it. N grows with the device until a product takes long enough to be seen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from gpu import ops
from gpu.checkpoint.abreast import abreast, max_rows, rows_abreast
from gpu.checkpoint.matrix import Matrix, Shard
from gpu.checkpoint.packing import pack, row_words
from gpu.errors import DeviceError
from gpu.ops import Batch, Norm, NormParts
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.step import Floats, Row, Step
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import Copy, StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Recorder
from gpu.webgpu.tiling import Tile, Tuning
from gpu.webgpu.timestamps import FIRST_MARK, Timestamps

K = 1024
"""Blocks that 8, 16 and 32 strands share evenly."""
BASE_N = 512
MOST_COPIES = 64
"""The largest weight, 64 MiB, is more than the caches of most GPUs hold."""
PREFILL_ROWS = 64
PREFILL_SHARE = 4
SEEN_S = 100e-6
"""A product that takes this long is more than the cost of a dispatch."""
PASS_S = 2e-3
MOST_REPEATS = 64
"""A pass repeats the product for about so long, but no more often."""
READBACK_BYTES = 8 * FIRST_MARK
TOLERANCE = 1e-4
"""Two orders of summing K float32 products of about unit length differ by at most a third of this;
products in float16 would by ten times as much."""
BYTES_TOLERANCE = 0.05
"""Rows rounded to bytes differ by 0.006 on average, by six times that at most; a block that is left
out, or read as another, by 0.2."""

Shape = Literal["decode", "prefill"]
N_ROWS: dict[Shape, int] = {"decode": 1, "prefill": PREFILL_ROWS}


@dataclass(frozen=True, slots=True)
class Trial:
    """One product cut in one way, with rows of float32 or of bytes. `tuning`: any that says so."""

    shape: Shape
    tile: Tile
    bytes: bool
    tuning: Tuning = field(compare=False)

    @classmethod
    def of(cls, shape: Shape, tuning: Tuning) -> Trial:
        n = BASE_N if shape == "decode" else BASE_N // PREFILL_SHARE
        return cls(shape, tuning.tile(N_ROWS[shape], n, K // 32), tuning.bytes, tuning)


@dataclass(slots=True)
class _Product:
    """What trials of one shape share. `expected`: the first trial's result."""

    batch: Batch
    weight: Matrix
    y: Tensor
    repeats: int = 1
    expected: Floats | None = None


class ProductTimer:
    """Buffers for both products on one device, with weights stored as `dtype`; `close` gives the
    large one back. Raises DeviceError when `default`, against which others are checked, does not
    run."""

    def __init__(self, device: Device, default: Tuning, dtype: str = "f16") -> None:
        self._device = device
        self._dtype = dtype
        self._kernels = Kernels(device)
        self._calls = open_calls(device)
        self._memory = Memory(device)
        self._timestamps = Timestamps(device, 0) if device.has_timestamps else None
        self._readback = self._calls.readback(READBACK_BYTES, "probe")
        rng = np.random.default_rng(0)
        x = rng.standard_normal((PREFILL_ROWS, K), np.float32)
        self._x = self._memory.upload("probe.x", x, purpose="work")
        gain = rng.uniform(0.5, 1.5, K).astype(np.float32)
        self._norm = Norm(self._memory.upload("probe.gain", gain, purpose="work"), 1e-5)
        packed = pack(dtype, rng.standard_normal((BASE_N, K), np.float32) * K**-0.5)
        self._n_abreast = rows_abreast(device, dtype, K, BASE_N, 1)
        self._packed = abreast(dtype, K, packed, self._n_abreast, np.empty_like(packed))
        self._make_products(1)
        self._make_products(self._copies_to_see(Trial.of("decode", default)))

    def begin(self, trial: Trial) -> str:
        """Compile and run a trial; what is wrong with it, or "". The first of each shape is what
        others are checked against."""
        product = self._products[trial.shape]
        poison = np.full(product.y.n_bytes // 4, np.nan, np.float32)
        self._memory.write(product.y, poison)
        try:
            self._prepared[trial] = self._prepare(trial, 1)
            self._run(trial)
            result = self._memory.read(product.y)
        except DeviceError as error:
            if product.expected is None:
                raise
            return str(error)
        if product.expected is None:
            product.expected = result
            product.repeats = _clamped(PASS_S / self._run(trial), MOST_REPEATS)
        self._prepared[trial] = self._prepare(trial, product.repeats)
        return fault(result, product.expected, BYTES_TOLERANCE if trial.bytes else TOLERANCE)

    def seconds(self, trial: Trial) -> float:
        """What one product of a trial that has begun takes."""
        return self._run(trial) / self._products[trial.shape].repeats

    def multiply_adds(self, shape: Shape) -> int:
        """Multiply-adds of one product; of decode also its weights."""
        weight = self._products[shape].weight
        return N_ROWS[shape] * weight.n * weight.k

    def close(self) -> None:
        self._weight.buffer.destroy()

    def _copies_to_see(self, trial: Trial) -> int:
        """How many times `BASE_N` rows keep the device busy for long enough."""
        self.begin(trial)
        seconds = min(self.seconds(trial) for _ in range(2))
        fits = max_rows(self._device, self._packed.shape[1], self._n_abreast) // BASE_N
        self._weight.buffer.destroy()
        return _clamped(SEEN_S / seconds, min(MOST_COPIES, fits))

    def _make_products(self, copies: int) -> None:
        """Both products, with a weight of `copies` times `BASE_N` rows."""
        n = BASE_N * copies
        self._weight = self._memory.weights(
            "probe.weight", n, row_words(self._dtype, K), self._n_abreast
        )
        for copy in range(copies):
            self._memory.write(self._weight, self._packed, at=copy * self._packed.nbytes)
        self._prepared: dict[Trial, Any] = {}
        self._products: dict[Shape, _Product] = {
            "decode": self._product("decode", n),
            "prefill": self._product("prefill", n // PREFILL_SHARE),
        }

    def _product(self, shape: Shape, n: int) -> _Product:
        memory, rows = self._memory, N_ROWS[shape]
        step = memory.zeros("probe.step", (STEP_BYTES // 4,), "u32", uniform=True)
        data = bytearray(STEP_BYTES)
        pack_step(Step((Row(0, 0, 0),) * rows), data, [[0]])
        memory.write(step, np.frombuffer(data, np.uint8))
        parts = NormParts.make(K, rows, memory)
        shards = (Shard(self._weight, 0, n),)
        return _Product(
            replace(Batch.make(memory, step, rows, 1), norm_parts=parts),
            Matrix("probe.weight", n, K, self._dtype, shards, (), abreast=self._n_abreast),
            memory.zeros(f"probe.{shape}", (rows, n)),
        )

    def _prepare(self, trial: Trial, repeats: int) -> Any:
        product = self._products[trial.shape]
        batch = product.batch
        if trial.bytes:
            room = ops.room_for_bytes(self._memory, [product.weight], PREFILL_ROWS)
            batch = replace(batch, byte_rows=room)
        rec = Recorder(replace(self._device, tuning=trial.tuning), self._kernels)
        ops.matmul(rec, batch, "probe", self._x, product.weight, product.y, norm=self._norm)
        dispatches = tuple(dispatch.in_pass for dispatch in rec.plan.dispatches) * repeats
        timing = self._timestamps.timing(FIRST_MARK, 0) if self._timestamps else None
        copies = () if timing else (Copy(product.y.buffer, READBACK_BYTES, 0),)
        return self._calls.prepare(StepCommands((dispatches,), copies, timing))

    def _run(self, trial: Trial) -> float:
        """Seconds of the whole pass, by the device's clock if it has one."""
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
    """What is wrong with a result, or ""."""
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
    """The power of two from 1 to `most` that is at least `wanted`, if there is one."""
    power = 1
    while power < wanted and 2 * power <= most:
        power *= 2
    return power
