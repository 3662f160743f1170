"""A small Llama with random weights, in the sizes of a real one, whose products and steps are timed
when an adapter is tuned.

It has as many layers as take `Procedure.rotated_bytes`: a step of a real model finds no weight in
the cache, because all others were read since.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu import ops
from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.packing import row_words
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES, RandomCheckpoint
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.errors import DeviceError
from gpu.info import AdapterInfo
from gpu.kv.blocks import blocks_for, fit_kv_cache
from gpu.kv.pools import KvPools
from gpu.models.registry import MODELS
from gpu.ops import Batch
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.plans.plan_cache import PlanCache, StepTensors
from gpu.step import Floats, Row, Sample, Step
from gpu.tuning.compare import Rounds
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import BufferCopy, StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Plan, Recorder
from gpu.webgpu.tiling import Tuning
from gpu.webgpu.timestamps import FIRST_MARK, Timestamps

CONTEXT = 512
"""Tokens of the sequence whose last rows are a step's."""
KV_DTYPE = "f16"
VOCABULARY = 8192
BLOCKS = range(blocks_for(CONTEXT))
LARGE_BUFFER = 1 << 30
"""A device that has no buffers of this size, such as a phone, has little memory."""
MOST_REPEATS = 64
READBACK_BYTES = 8 * FIRST_MARK
TOLERANCE = 1e-4
"""Two summation orders of K float32 terms of about unit size differ by at most a third of this;
float16 arithmetic would differ by ten times as much."""
Q8_TOLERANCE = 0.05
"""int8 rows differ by 0.006 on average and six times that at most; a missing or wrong block differs
by 0.2."""


@dataclass(frozen=True, slots=True)
class Procedure:
    """How an adapter is tuned.

    shape          model whose layers are taken
    products       those of a layer (qkv, out, gate_up, down) that are timed
    rotated_bytes  least size of the weights of all layers
    pass_s         about how long a timing takes; shorter work is repeated
    rounds         see `gpu.tuning.compare`
    budget_s       seconds for all choices
    confirms       a choice must also make whole steps faster
    """

    shape: ModelConfig
    products: slice
    rotated_bytes: int
    pass_s: float
    rounds: Rounds
    budget_s: float
    confirms: bool

    @classmethod
    def of(cls, info: AdapterInfo) -> Procedure:
        if info.software:
            return SOFTWARE_PROCEDURE
        if info.limits.get("max-buffer-size", 0) < LARGE_BUFFER:
            return replace(GPU_PROCEDURE, shape=LLAMA_SHAPES["smol135"])
        return GPU_PROCEDURE

    def config(self, dtype: str) -> ModelConfig:
        """Return the configuration of a model with weights stored as `dtype`."""
        of_layer = sum(4 * n * row_words(dtype, k) for n, k in layer_matrices(self.shape))
        n_layers = max(1, -(-self.rotated_bytes // of_layer))
        return replace(self.shape, n_layers=n_layers, vocab_size=VOCABULARY, context=CONTEXT)


GPU_PROCEDURE = Procedure(
    shape=LLAMA_SHAPES["llama1b"],
    products=slice(0, 4),
    # more than the L2 of GPUs, which has 50 MB on an H100, 96 on an RTX 5090 and 126 on a B200
    rotated_bytes=128 << 20,
    pass_s=5e-3,
    rounds=Rounds(warm_s=0.3, max_drift=0.03, most=15, least=5),
    budget_s=60.0,
    confirms=True,
)
SOFTWARE_PROCEDURE = Procedure(
    shape=LLAMA_SHAPES["tiny"],
    products=slice(2, 3),  # each product more compiles for a tenth of a second and more
    rotated_bytes=0,
    pass_s=2e-3,
    rounds=Rounds(warm_s=0.0, max_drift=None, most=15, least=1),
    budget_s=3.0,
    confirms=False,
)


class RandomModel:
    """A model of a `Procedure` on a device, with weights stored as `dtype`. Raises DeviceError if
    they do not fit."""

    def __init__(self, device: Device, procedure: Procedure, dtype: str) -> None:
        self.device, self.dtype, self.procedure = device, dtype, procedure
        self.memory = memory = Memory(device)
        config = procedure.config(dtype)
        with WeightLoader(RandomCheckpoint(config), memory, dtype) as load:
            self.model = MODELS[config.model_type](config, load, memory, CONTEXT)
        self.calls = open_calls(device)
        self.readback = self.calls.readback(READBACK_BYTES, "autotune")
        self.timestamps = Timestamps(device, 0) if device.has_timestamps else None

    @property
    def n_products(self) -> int:
        """Products of a layer that are timed."""
        return len(self.products) // self.model.config.n_layers

    @property
    def products(self) -> Sequence[Matrix]:
        """Matrices of the products that are timed, in the order of a step."""
        found = self.model.layer_matrices()
        layers = (found[i : i + 4] for i in range(0, len(found), 4))
        return [matrix for layer in layers for matrix in layer[self.procedure.products]]

    def multiply_adds(self, n_rows: int) -> int:
        """Return the multiply-adds of all timed products with so many rows."""
        return sum(n_rows * matrix.n * matrix.k for matrix in self.products)

    def close(self) -> None:
        for tensor in self.memory.weight_tensors:
            tensor.buffer.destroy()


class _PassTimer:
    """Times a plan of each tuning and number of rows, several times in a pass. Implements
    `gpu.tuning.compare.Timer`, but for `begin`, which records the plan."""

    def __init__(self, of: RandomModel, step: Tensor) -> None:
        self._of, self._step, self._n_rows = of, step, 0
        self._plans: dict[tuple[Tuning, int], Plan] = {}
        self._repeats: dict[int, int] = {}
        self._prepared: dict[tuple[Tuning, int, int], Any] = {}

    def warm_up(self, tuning: Tuning, n_rows: int, seconds: float) -> None:
        """Also find how often the work is repeated, so that the device hardly waits."""
        until = time.perf_counter() + seconds
        self._repeats[n_rows] = 1
        while True:
            took = self.seconds(tuning, n_rows)
            wanted = min(int(self._of.procedure.pass_s / max(took, 1e-9)), MOST_REPEATS)
            self._repeats[n_rows] = 1 << max(0, wanted.bit_length() - 1)
            if time.perf_counter() >= until:
                return

    def seconds(self, tuning: Tuning, n_rows: int) -> float:
        self._write(n_rows)
        repeats = self._repeats[n_rows]
        key = (tuning, n_rows, repeats)
        if key not in self._prepared:
            self._prepared[key] = self._prepare(self._plans[tuning, n_rows], repeats)
        return self._run(self._prepared[key]) / repeats

    def _write(self, n_rows: int) -> None:
        """Write the greedy step of the last `n_rows` tokens of a sequence, unless it is there."""
        if n_rows == self._n_rows:
            return
        rows = tuple(Row(0, CONTEXT - n_rows + i, i) for i in range(n_rows))
        data = bytearray(STEP_BYTES)
        pack_step(Step(rows, (Sample(n_rows - 1, 0, 0, 0, 0.0),)), data, [BLOCKS])
        self._of.memory.write(self._step, np.frombuffer(data, np.uint8))
        self._n_rows = n_rows

    def _prepare(self, plan: Plan, repeats: int) -> Any:
        dispatches = tuple(dispatch.in_pass for dispatch in plan.dispatches) * repeats
        timing = self._of.timestamps.timing(FIRST_MARK, 0) if self._of.timestamps else None
        copies = () if timing else (BufferCopy(self._step.buffer, READBACK_BYTES, 0),)
        return self._of.calls.prepare(StepCommands((dispatches,), copies, timing))

    def _run(self, prepared: Any) -> float:
        """Return the seconds of the whole pass, by the device's clock if it has one."""
        calls, readback, timestamps = self._of.calls, self._of.readback, self._of.timestamps
        commands = calls.encode(prepared, readback)
        began = time.perf_counter()
        calls.submit(commands, readback)
        readback.wait()
        seconds = time.perf_counter() - began
        data = readback.read(READBACK_BYTES)
        if timestamps:
            begin, end = timestamps.milliseconds(data, FIRST_MARK, 0)
            if 0 < end - begin < 1e3 * seconds:  # drivers without a working clock leave zeros
                return float(end - begin) / 1e3
        return seconds


class ProductTimer(_PassTimer):
    """Times the products of all layers without the norms and activations between them. Each waits
    for the one before, whose results it overwrites."""

    def __init__(self, of: RandomModel) -> None:
        memory, matrices = of.memory, of.products
        super().__init__(of, memory.zeros("autotune.step", (STEP_BYTES // 4,), "u32", uniform=True))
        most, rng = memory.max_rows, np.random.default_rng(0)
        self._kernels = Kernels(of.device)
        self._x: dict[int, Tensor] = {}
        for k in {matrix.k for matrix in matrices}:
            x = np.zeros((most, padded(k)), np.float32)
            x[:, :k] = rng.standard_normal((most, k), np.float32)
            self._x[k] = memory.upload(f"autotune.x{k}", x, purpose="work")
        self._y = memory.zeros("autotune.y", (most, max(padded(matrix.n) for matrix in matrices)))
        self._quantized_rows: Tensor | None = None
        self._expected: dict[int, list[Floats]] = {}

    def begin(self, tuning: Tuning, n_rows: int) -> str:
        of = self._of
        tolerance = Q8_TOLERANCE if tuning.q8_activations else TOLERANCE
        self._write(n_rows)
        try:
            results = [
                self._result(self._record(tuning, n_rows, [matrix]), matrix, n_rows)
                for matrix in of.products[: of.n_products]  # of the first layer
            ]
            self._plans[tuning, n_rows] = self._record(tuning, n_rows, of.products)
        except DeviceError as error:
            if n_rows not in self._expected:
                raise
            return str(error)
        expected = self._expected.setdefault(n_rows, results)
        faults = (fault(*pair, tolerance) for pair in zip(results, expected, strict=True))
        return next(filter(None, faults), "")

    def _record(self, tuning: Tuning, n_rows: int, matrices: Sequence[Matrix]) -> Plan:
        batch = Batch(self._step, n_rows, 1)
        if tuning.q8_activations:
            batch = replace(batch, quantized_rows=self._rows_in_int8())
        rec = Recorder(replace(self._of.device, tuning=tuning), self._kernels)
        for matrix in matrices:
            y = replace(self._y, shape=(self._y.shape[0], padded(matrix.n)))
            ops.matmul(rec, batch, matrix.name, self._x[matrix.k], matrix, y)
        return rec.plan

    def _rows_in_int8(self) -> Tensor | None:
        rows, of = self._quantized_rows, self._of
        if rows is None:
            rows = ops.make_quantized_rows(of.memory, of.products, of.memory.max_rows)
            self._quantized_rows = rows
        return rows

    def _result(self, plan: Plan, matrix: Matrix, n_rows: int) -> Floats:
        """Run the plan of one product; return its results, (n_rows, n)."""
        memory, width = self._of.memory, padded(matrix.n)
        memory.write(self._y, np.full(n_rows * width, np.nan, np.float32))
        self._run(self._prepare(plan, 1))
        y = replace(self._y, shape=(n_rows, width), n_bytes=4 * n_rows * width)
        return memory.read(y)[:, : matrix.n]


class StepTimer(_PassTimer):
    """Times whole steps: a token, the tokens of several rows, a chunk of a prompt."""

    def __init__(self, of: RandomModel) -> None:
        memory, config = of.memory, of.model.config
        n_tables = 2  # the last is for inspection
        shape = fit_kv_cache(
            config, KV_DTYPE, 1, context=CONTEXT, max_binding_bytes=of.device.max_binding_bytes
        )
        self._pools = KvPools(config, shape, KV_DTYPE, n_tables, memory)
        self._pools.set_blocks(0, list(BLOCKS))
        self._tensors = StepTensors.make(config, n_tables, memory)
        self._caches: dict[Tuning, PlanCache] = {}
        super().__init__(of, self._tensors.step)

    def begin(self, tuning: Tuning, n_rows: int) -> str:
        """Return "": results were checked product by product."""
        of = self._of
        if tuning not in self._caches:
            device = replace(of.device, tuning=tuning)
            self._caches[tuning] = PlanCache(
                device, of.model, self._pools, self._tensors, of.memory
            )
        plan = self._caches[tuning].plan(n_rows, 1, "plain", CONTEXT).plan
        self._plans[tuning, n_rows] = plan
        self._write(n_rows)
        self._run(self._prepare(plan, 1))
        return ""


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


def layer_matrices(shape: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Return outputs and inputs of the matrices of a layer."""
    hidden, inner, d = shape.hidden_size, shape.intermediate_size, shape.head_dim
    qkv = (shape.n_heads + 2 * shape.n_kv_heads) * d
    return (qkv, hidden), (hidden, shape.n_heads * d), (2 * inner, hidden), (hidden, inner)
