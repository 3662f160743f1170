"""Runs single ops with poisoned buffers and compares them with their NumPy twins.

Inputs hold NaN wherever an op must not read, outputs hold NaN wherever it must write, and the guard
rows after them must keep every bit. A comparison is noted, not raised: one wrong op should not hide
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig, RopeConfig
from gpu.ops import Batch, RmsNormSplit
from gpu.ops.quantize_activations import quantized_row_words
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.step import MAX_ROWS, Row, Sample, Step
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Recorder

ROUNDING = 2.0**-24
"""Relative rounding error of one float32 operation."""
DENORMAL = 1e-36
"""Smallest normal float32; devices may flush smaller numbers to zero."""
POISON = 0x7FC0BEEF
"""A float32 NaN with a recognisable payload."""
GUARD_ROWS = 3
WIDEST = 1024
"""Widest row that is normalised before a matmul."""
WIDEST_ASSIGNMENTS = 2048
"""Rows of int8 activations that a check may need: rows times experts of each."""

Array = npt.NDArray[Any]


@dataclass(slots=True)
class Finding:
    """Outcome of the comparisons of one check.

    error     largest |device - reference|, relative to the largest number of the reference or 1
    of_bound  largest error relative to its bound; more than 1 is wrong
    numbers   how many numbers were compared
    wrong     what is wrong; "" if nothing is
    """

    error: float = 0.0
    of_bound: float = 0.0
    numbers: int = 0
    wrong: str = ""


class Rig:
    """Buffers, batches, recording and replay of single ops on one device."""

    def __init__(self, device: Device, kernels: Kernels | None = None) -> None:
        self.device = device
        self.kernels = kernels or Kernels(device)
        self.calls = open_calls(device)
        self.memory = Memory(device)
        self.found = Finding()
        self._step = self.memory.zeros("step", (STEP_BYTES // 4,), "u32", uniform=True)
        self._rms_norm_split = RmsNormSplit.make(WIDEST, MAX_ROWS, self.memory)
        self.quantized_rows: Tensor | None = None
        if device.tuning.q8_activations:
            n_words = WIDEST_ASSIGNMENTS * quantized_row_words(128)
            self.quantized_rows = self.memory.zeros("quantized_rows", (n_words,), "u32")

    # ---- comparing --------------------------------------------------------------------------

    def compare(self, what: str, got: Array, want: Array, bound: Array | float) -> None:
        """Compare |got - want| with `bound`. A NaN is wrong unless both are."""
        want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
        if got.shape != want.shape:
            self.fail(f"{what}: shape {got.shape} instead of {want.shape}")
            return
        error = np.abs(got - want)
        bounds = np.broadcast_to(bound, want.shape) + DENORMAL
        found, ratio = self.found, error / bounds
        found.numbers += error.size
        found.error = max(found.error, _largest(error) / max(np.abs(want).max(), 1.0))
        found.of_bound = max(found.of_bound, _largest(ratio))
        wrong = ~(error <= bounds)
        if wrong.any():
            size = np.where(np.isnan(ratio), np.inf, ratio)
            at = tuple(int(i) for i in np.unravel_index(np.argmax(size), size.shape))
            self.fail(
                f"{what}: {wrong.sum()} of {wrong.size} numbers are wrong, the worst at {at}: "
                f"{got[at]:g} instead of {want[at]:g} (bound {bounds[at]:.2g})"
            )

    def expect(self, what: str, is_right: bool | np.bool_) -> None:
        """Note a statement that has to be true."""
        self.found.numbers += 1
        if not is_right:
            self.fail(what)

    def fail(self, wrong: str) -> None:
        """Note what is wrong; of several findings the first is kept."""
        self.found.wrong = self.found.wrong or wrong

    # ---- running ----------------------------------------------------------------------------

    def batch(
        self,
        rows: Sequence[Row],
        samples: Sequence[Sample] = (),
        *,
        bucket: int | None = None,
        blocks: Sequence[Sequence[int]] | None = None,
    ) -> Batch:
        """Write a step and return its batch. `bucket`: rows that the plan is recorded for.
        `blocks`: KV blocks of each slot, for ops that write to the cache."""
        data = bytearray(STEP_BYTES)
        n_slots = 1 + max((row.slot for row in rows), default=0)
        tables = blocks or [range(1 << 20)] * n_slots
        pack_step(Step(tuple(rows), tuple(samples)), data, tables)
        self.memory.write(self._step, np.frombuffer(data, np.uint8))
        batch = Batch(self._step, bucket or len(rows), max(1, len(samples)))
        for tensor in (self._rms_norm_split.rows, self._rms_norm_split.scales):
            self.poison(tensor)
        if self.quantized_rows is not None:
            self.poison(self.quantized_rows)
        return replace(
            batch, rms_norm_split=self._rms_norm_split, quantized_rows=self.quantized_rows
        )

    def run(self, record: Callable[[Recorder], None]) -> None:
        """Record and submit; reading a result waits for it."""
        rec = Recorder(self.device, self.kernels)
        record(rec)
        commands = self.calls.prepare(StepCommands(rec.plan.segments()))
        self.calls.submit(self.calls.encode(commands))
        self.calls.wait(self.calls.flush())

    # ---- tensors ----------------------------------------------------------------------------

    def poison(self, tensor: Tensor) -> Tensor:
        self.memory.write(tensor, np.full(tensor.n_bytes // 4, POISON, np.uint32))
        return tensor

    def input(self, name: str, rows: Array) -> Tensor:
        """Upload an activation (n_rows, width): zeros in columns past the width, NaN in rows past
        the last."""
        n_rows, width = rows.shape
        whole = poisoned(n_rows + GUARD_ROWS, padded(width))
        whole[:n_rows] = 0
        whole[:n_rows, :width] = rows
        return self.memory.upload(name, whole)

    def gain(self, gain: Array) -> Tensor:
        """Upload a vector, padded with zeros to whole blocks."""
        return self.memory.upload("gain", np.pad(gain, (0, -len(gain) % 32)))

    def output(self, n_rows: int, width: int, stride: int | None = None) -> Output:
        """Allocate a poisoned and guarded result (n_rows, width) with this row stride."""
        before = poisoned(n_rows + GUARD_ROWS, stride or padded(width))
        before[:, width:] = 0
        return Output(self, self.memory.upload("out", before), before, n_rows, width)

    def matrix(self, weight: Array, dtype: str) -> Matrix:
        """Upload `weight` (n, k) as a loader does."""
        loader = WeightLoader(Arrays({"w": weight}), self.memory, dtype)
        return loader.matrix("weight", "w", *weight.shape)


@dataclass(frozen=True, slots=True)
class Output:
    """A poisoned tensor and its previous contents."""

    rig: Rig
    tensor: Tensor
    before: Array
    n_rows: int
    width: int

    def read(self) -> Array:
        """Return the result; note if anything outside its rows and columns changed."""
        after = self.rig.memory.read(self.tensor)
        untouched = after.view(np.uint32) == self.before.view(np.uint32)
        untouched[: self.n_rows, : self.width] = True
        if not untouched.all():
            row, column = np.argwhere(~untouched)[0]
            self.rig.fail(
                f"wrote to row {row}, column {column}, outside the result of {self.n_rows} rows of "
                f"{self.width}"
            )
        result: Array = after[: self.n_rows, : self.width]
        return result


class Arrays:
    """A `gpu.checkpoint.reader.WeightSource` of arrays."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def shape(self, name: str) -> tuple[int, ...]:
        return self._arrays[name].shape

    def read_f32(self, name: str, rows: slice | None = None, columns: slice | None = None) -> Array:
        found = self._arrays[name][rows or slice(None)]
        return (found if columns is None else found[:, columns]).astype(np.float32)

    def read_f16(self, name: str, rows: slice | None = None, columns: slice | None = None) -> Array:
        return self.read_f32(name, rows, columns).astype(np.float16)

    def read_into(
        self, out: Array, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> None:
        out[...] = self.read_f32(name, rows, columns)


def op_config(**changes: Any) -> ModelConfig:
    """Return a configuration with the fields that ops read."""
    config = ModelConfig(
        model_type="llama",
        n_layers=1,
        n_heads=1,
        n_kv_heads=1,
        head_dim=8,
        hidden_size=8,
        intermediate_size=8,
        vocab_size=8,
        context=512,
        norm_eps=1e-5,
        tie_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        rope=RopeConfig(),
        eos_ids=(),
        bos_id=None,
        torch_dtype=None,
    )
    return replace(config, **changes)


def rows_at(positions: Sequence[int], slots: Sequence[int] | None = None) -> list[Row]:
    """Return rows of a step; their tokens are not used."""
    return [Row(s, p, 0) for s, p in zip(slots or [0] * len(positions), positions, strict=True)]


def plain_rows(n: int) -> list[Row]:
    """Return the rows of positions 0 to n - 1 of one sequence."""
    return rows_at(range(n))


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.normal(size=shape).astype(np.float32)


def f64(*arrays: Array) -> Any:
    """Return arrays in double precision: one, or a tuple."""
    found = tuple(array.astype(np.float64) for array in arrays)
    return found if len(found) > 1 else found[0]


def recording(
    op: Callable[..., None], *args: object, **named: object
) -> Callable[[Recorder], None]:
    """Return a function that records `op` with these arguments."""
    return lambda rec: op(rec, *args, **named)


def poisoned(*shape: int) -> Array:
    return np.full(shape, POISON, np.uint32).view(np.float32)


def _largest(values: Array) -> float:
    """Return the largest of the numbers that are finite."""
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else 0.0
