"""Runs single ops with poisoned buffers and compares them with their NumPy twins.

Inputs hold NaN wherever an op must not read, outputs hold NaN wherever it must write, and the guard
rows after them must keep every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.weights import WeightLoader
from gpu.checks.difference import Difference, WrongResult, difference
from gpu.config import ModelConfig, RopeConfig
from gpu.ops import Batch, RmsNormSplit
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.step import MAX_ROWS, Row, Sample, Step
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DevicePolicy
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Recorder

ROUNDING = 2.0**-24
"""Relative rounding error of one float32 operation."""
POISON = 0x7FC0BEEF
"""A float32 NaN with a recognisable payload."""
GUARD_ROWS = 3
WIDEST = 4096
"""Widest row that is normalised before a matmul."""
QUANTIZED_WORDS = 1 << 18
"""Words of all int8 activations of a check."""

Array = npt.NDArray[Any]


class Rig:
    """Buffers, batches, recording and replay of single ops on one device.

    found     what the comparisons found
    """

    def __init__(
        self,
        device: Device,
        kernels: Kernels | None = None,
        found: list[Difference] | None = None,
    ) -> None:
        self.device = device
        self.kernels = Kernels(device) if kernels is None else kernels  # an empty one is false
        self.calls = open_calls(device)
        self.memory = Memory(device)
        self.found = [] if found is None else found
        self._step = self.memory.zeros("step", (STEP_BYTES // 4,), "u32", uniform=True)
        self._rms_norm_split = RmsNormSplit.make(WIDEST, MAX_ROWS, self.memory)
        self.quantized_rows: Tensor | None = None
        if device.tuning.q8_activations:
            self.quantized_rows = self.memory.zeros("quantized_rows", (QUANTIZED_WORDS,), "u32")

    def on(self, device: Device) -> Self:
        """Return a rig with the same kernels for the same device with another policy."""
        return type(self)(device, self.kernels, self.found)

    # ---- comparing --------------------------------------------------------------------------

    def compare(
        self, result: str, case: object, got: Array, want: Array, bound: Array | float
    ) -> None:
        """Raise WrongResult unless |got - want| <= bound everywhere. `result` names what is
        compared, `case` of which numbers."""
        found = difference(got, want, bound)
        self.note(result, found)
        if found.wrong:
            raise WrongResult(f"{result}, {case}: {found.wrong}")

    def note(self, result: str, found: Difference) -> None:
        """Keep what a comparison found."""
        self.found.append(found)

    def expect(self, what: str, is_right: bool | np.bool_) -> None:
        """Raise WrongResult(what) unless a statement is true."""
        self.note(what, Difference(numbers=1))
        if not is_right:
            raise WrongResult(what)

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

    def run_op(self, op: Callable[..., None], *args: object, **named: object) -> None:
        """Record `op` with these arguments and run it."""
        self.run(lambda rec: op(rec, *args, **named))

    def run(self, record: Callable[[Recorder], None]) -> None:
        """Record and run; return once the device is done."""
        rec = Recorder(self.device, self.kernels)
        record(rec)
        commands = self.calls.prepare(StepCommands(rec.plan.segments()))
        self.calls.submit(self.calls.encode(commands))
        self.calls.wait(self.calls.flush())

    # ---- tensors ----------------------------------------------------------------------------

    def poison(self, tensor: Tensor) -> Tensor:
        self.memory.write(tensor, np.full(tensor.n_bytes // 4, POISON, np.uint32))
        return tensor

    def unwritten(self, array: Array) -> Array:
        """Return what a cache that should hold `array` holds: NaN where nothing was written."""
        return array

    def input(self, name: str, rows: Array) -> Tensor:
        """Upload an activation (n_rows, width): zeros in columns past the width, NaN in rows past
        the last."""
        return self.memory.upload(name, with_guard(rows))

    def gain(self, gain: Array) -> Tensor:
        """Upload a vector, padded with zeros to whole blocks."""
        return self.memory.upload("gain", np.pad(gain, (0, -len(gain) % 32)))

    def output(self, n_rows: int, width: int, stride: int | None = None) -> Output:
        """Allocate a poisoned and guarded result (n_rows, width) with this row stride."""
        before = poisoned(n_rows + GUARD_ROWS, stride or padded(width))
        before[:, width:] = 0
        return Output(self, self.memory.upload("out", before), before, n_rows, width)

    def in_place(self, rows: Array) -> Output:
        """Upload an activation that is also the result; nothing around it may change."""
        before = with_guard(rows)
        return Output(self, self.memory.upload("in_place", before), before, *rows.shape)

    def loader(
        self, arrays: Mapping[str, Array], dtype: str, shard_bytes: int | None = None
    ) -> WeightLoader:
        """Return a loader of these arrays that cuts matrices into shards of `shard_bytes`."""
        device = limited(self.device, shard_bytes) if shard_bytes else self.device
        return WeightLoader(Arrays(arrays), Memory(device), dtype)

    def matrix(self, weight: Array, dtype: str, shard_bytes: int | None = None) -> Matrix:
        """Upload `weight` (n, k) as a loader does."""
        loader = self.loader({"w": weight}, dtype, shard_bytes)
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
        """Return the result; raise WrongResult if anything outside its rows and columns changed."""
        after = self.rig.memory.read(self.tensor)
        untouched = after.view(np.uint32) == self.before.view(np.uint32)
        untouched[: self.n_rows, : self.width] = True
        if not untouched.all():
            row, column = np.argwhere(~untouched)[0]
            self.rig.expect(
                f"{self.tensor!r}: wrote {after[row, column]} to row {row}, column {column}, "
                f"outside the result of {self.n_rows} rows of {self.width}",
                False,
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


def with_info(device: Device, **changes: Any) -> Device:
    """Return the same device with a changed adapter description, and the policy for it."""
    info = replace(device.info, **changes)
    return replace(device, info=info, policy=DevicePolicy.of(info))


def limited(device: Device, max_binding_bytes: int) -> Device:
    """Return the same device with a lower binding limit, so that matrices are cut into shards."""
    limits = {**device.info.limits, "max-storage-buffer-binding-size": max_binding_bytes}
    return with_info(device, limits=limits)


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


def greedy(row: int, slot: int = 0) -> Sample:
    """Return a greedy sample of a slot after `row`."""
    return Sample(row, slot, 0, 0, 0.0)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.normal(size=shape).astype(np.float32)


def f64(*arrays: Array) -> Any:
    """Return arrays in double precision: one, or a tuple."""
    found = tuple(array.astype(np.float64) for array in arrays)
    return found if len(found) > 1 else found[0]


def poisoned(*shape: int) -> Array:
    return np.full(shape, POISON, np.uint32).view(np.float32)


def check_each(check: Callable[..., object], *cases: object) -> Callable[[Rig], None]:
    """Return a function that calls `check` with a rig and each case: one argument, or a tuple of
    them."""

    def check_all(rig: Rig) -> None:
        for case in cases:
            check(rig, *(case if isinstance(case, tuple) else (case,)))

    return check_all


def with_guard(rows: Array) -> Array:
    """Return rows (n_rows, width) with zeros in columns past the width, NaN in rows past the
    last."""
    n_rows, width = rows.shape
    whole = poisoned(n_rows + GUARD_ROWS, padded(width))
    whole[:n_rows] = 0
    whole[:n_rows, :width] = rows
    return whole
