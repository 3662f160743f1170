"""Runs single ops on a device with poisoned buffers.

Inputs hold NaN wherever an op must not read, outputs hold NaN wherever it must write, and guard
rows after them must keep every bit. `compare` holds a result to a bound that was worked out from
the rounding of float32, and remembers the largest error for the report at the end of the run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig, RopeConfig
from gpu.ops import Batch, RmsNormSplit
from gpu.ops.quantize_activations import BLOCK_WORDS, EVEN_ODD, quantized_row_words
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.reference.quantize_activations import in_order
from gpu.step import MAX_ROWS, Row, Sample, Step
from gpu.tracing.races import races
from gpu.tracing.tracer import Tracer
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DevicePolicy
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Plan, Recorder
from gpu.webgpu.tiling import GPU
from tests import figures
from tests.figures import Worst
from tests.gpu.ops.lane_orders import ORDERS, RenumberedKernels

ROUNDING = 2.0**-24
"""Relative rounding error of one float32 operation."""
DENORMAL = 1e-36
"""Smallest normal float32; devices may flush smaller numbers to zero."""
POISON = 0x7FC0BEEF
"""A float32 NaN with a recognisable payload."""
GUARD_ROWS = 3
WIDEST = 4096
"""Widest row that is normalised before a matmul."""

IN_ANY_ORDER = ("bins",)
"""Tensors whose words may lie in any order; what is made of them has one result."""

Array = npt.NDArray[Any]


def with_info(device: Device, **changes: Any) -> Device:
    """Return the same device with a changed adapter description, and the policy for it."""
    info = replace(device.info, **changes)
    return replace(device, info=info, policy=DevicePolicy.of(info))


def limited(device: Device, max_binding_bytes: int) -> Device:
    """Return the same device with a lower binding limit, so that matrices are cut into shards."""
    limits = {**device.info.limits, "max-storage-buffer-binding-size": max_binding_bytes}
    return with_info(device, limits=limits)


def as_kind(device: Device, software: bool) -> Device:
    """Return the same device posing as a software device or a GPU: ops choose other tiles."""
    tuning = device.tuning if software else GPU
    return with_info(replace(device, tuning=tuning), software=software)


def without_int64(device: Device) -> Device:
    """Return the same device without 64-bit integers: shaders load words."""
    features = tuple(name for name in device.info.features if name != "shader-int64")
    return with_info(device, features=features)


class Arrays:
    """A `WeightSource` of arrays."""

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


def written_by(plan: Plan) -> list[Tensor]:
    """Return the tensors that a plan's dispatches may write, each once."""
    found = {
        id(tensor): tensor
        for dispatch in plan.dispatches
        for binding in dispatch.kernel.bindings
        if binding.kind == "storage"
        for tensor in (dispatch.tensors[binding.name],)
    }
    return list(found.values())


class Rig:
    """Runs ops on one device: buffers, batches, recording and replay."""

    lane_orders = False
    """Set by `--lane-orders`."""
    races = False
    """Set by `--races`."""
    leftover = float("nan")
    """What buffers hold before a test writes to them. Set by `--leftovers`."""

    def __init__(self, device: Device, kernels: Kernels) -> None:
        self._renumbered: dict[str, Kernels] = {}
        self._tracer: Tracer | None = None
        self._parts = cycle(range(3))
        self.device = device
        self.kernels = kernels
        self.calls = open_calls(device)
        self.memory = Memory(device)
        self.step = self.memory.zeros("step", (STEP_BYTES // 4,), "u32", uniform=True)
        self.rms_norm_split = RmsNormSplit.make(WIDEST, MAX_ROWS, self.memory)
        q8_activations = device.tuning.q8_activations
        self.quantized_rows = (
            self.memory.zeros("quantized_rows", (1 << 18,), "u32") if q8_activations else None
        )

    def batch(
        self,
        rows: list[Row],
        samples: list[Sample] | None = None,
        *,
        bucket: int | None = None,
        blocks: Sequence[Sequence[int]] | None = None,
    ) -> Batch:
        """Write a step and return its batch. `bucket`: rows that the plan is recorded for.
        `blocks`: KV blocks of each slot, for ops that write to the cache."""
        samples = samples or []
        data = bytearray(STEP_BYTES)
        n_slots = 1 + max((row.slot for row in rows), default=0)
        tables = blocks or [range(1 << 20)] * n_slots
        pack_step(Step(tuple(rows), tuple(samples)), data, tables)
        self.memory.write(self.step, np.frombuffer(data, np.uint8))
        batch = Batch(self.step, bucket or len(rows), max(1, len(samples)))
        for tensor in (self.rms_norm_split.rows, self.rms_norm_split.scales):
            self.poison(tensor)
        batch = replace(batch, rms_norm_split=self.rms_norm_split)
        if self.quantized_rows is None:
            return batch
        return replace(batch, quantized_rows=self.poison(self.quantized_rows))

    def rounded(self, dtype: str, n_rows: int, k: int) -> Array:
        """Return the int8 rows of the last matmul with a `dtype` weight: float64 (n_rows, k)."""
        assert self.quantized_rows is not None
        n_words = quantized_row_words(k)
        words = self.memory.read(self.quantized_rows)[: n_rows * n_words].reshape(n_rows, n_words)
        q, scales, _ = unpack_quantized_rows(words)
        return in_order(q * scales[..., None], k, even_odd=EVEN_ODD[dtype])

    def run(self, record: Callable[[Recorder], None]) -> None:
        """Record and replay; return once the work is submitted. With `--lane-orders`, do so again
        in each of `ORDERS`, and fail unless all results but `IN_ANY_ORDER` have the same bits. With
        `--races`, trace a workgroup of every dispatch, and fail if its lanes race."""
        plan = self._recorded(record, self.kernels)
        if self.races:
            self._run_traced(plan)
            return
        if not self.lane_orders:
            self._submit(plan)
            return
        before = {id(t): (t, self._words(t)) for t in written_by(plan)}
        self._submit(plan)
        want = {key: self._words(tensor) for key, (tensor, _) in before.items()}
        for order in ORDERS:
            kernels = self._renumbered.setdefault(order, RenumberedKernels(self.device, order))
            again = self._recorded(record, kernels)
            self._restore(list(before.values()))
            self._submit(again)
            for tensor in written_by(again):
                if id(tensor) not in want:
                    continue
                found, wanted = self._words(tensor), want[id(tensor)]
                if tensor.name in IN_ANY_ORDER:
                    found, wanted = np.sort(found, axis=None), np.sort(wanted, axis=None)
                same = np.array_equal(found, wanted)
                assert same, f"{tensor!r} depends on the order of the lanes ({order})"

    def _run_traced(self, plan: Plan) -> None:
        self._tracer = self._tracer or Tracer(self.device)
        for dispatch in plan.dispatches:
            part = next(self._parts)  # the first, a middle or the last workgroup
            x, y, z = (part * (n - 1) // 2 for n in dispatch.grid)
            before = [(tensor, self._words(tensor)) for tensor in written_by(plan)]
            restore = functools.partial(self._restore, before)
            found = races(self._tracer.run(dispatch, (x, y, z), restore))
            assert not found, f"{dispatch.label}, workgroup {x, y, z}: {found[0]}"

    def _restore(self, before: list[tuple[Tensor, Array]]) -> None:
        for tensor, contents in before:
            self.memory.write(tensor, contents)

    def _words(self, tensor: Tensor) -> Array:
        """Return the contents of a tensor of any type as u32."""
        return self.memory.read(replace(tensor, shape=(tensor.n_bytes // 4,), dtype="u32"))

    def _recorded(self, record: Callable[[Recorder], None], kernels: Kernels) -> Plan:
        rec = Recorder(self.device, kernels)
        record(rec)
        return rec.plan

    def _submit(self, plan: Plan) -> None:
        commands = self.calls.prepare(StepCommands(plan.segments()))
        self.calls.submit(self.calls.encode(commands))

    def poison(self, tensor: Tensor) -> Tensor:
        word = POISON if np.isnan(self.leftover) else np.float32(self.leftover).view(np.uint32)
        self.memory.write(tensor, np.full(tensor.n_bytes // 4, word, np.uint32))
        return tensor

    def input(self, name: str, rows: Array) -> Tensor:
        """Upload an activation (n_rows, width): zeros in columns past the width, NaN in rows past
        the last."""
        n_rows, width = rows.shape
        whole = _poisoned(n_rows + GUARD_ROWS, padded(width))
        whole[:n_rows] = 0
        whole[:n_rows, :width] = rows
        return self.memory.upload(name, whole)

    def output(self, name: str, n_rows: int, width: int, stride: int | None = None) -> Output:
        """Allocate a poisoned and guarded result (n_rows, width) with this row stride."""
        before = _poisoned(n_rows + GUARD_ROWS, stride or padded(width))
        before[:, width:] = 0
        return Output(self.memory, self.memory.upload(name, before), before, n_rows, width)

    def matrix(self, weight: Array, dtype: str, *, max_binding_bytes: int | None = None) -> Matrix:
        """Upload `weight` (n, k) as a loader would, in shards of `max_binding_bytes`."""
        device = limited(self.device, max_binding_bytes) if max_binding_bytes else self.device
        loader = WeightLoader(Arrays({"w": weight}), Memory(device), dtype)
        return loader.matrix("weight", "w", *weight.shape)

    def paired(
        self, even: Array, odd: Array, dtype: str, *, max_binding_bytes: int | None = None
    ) -> Matrix:
        """Upload two matrices with alternating rows, as gate and up are stored."""
        device = limited(self.device, max_binding_bytes) if max_binding_bytes else self.device
        arrays = Arrays({"even": even, "odd": odd})
        loader = WeightLoader(arrays, Memory(device), dtype)
        return loader.gate_up("weight", "even", "odd", *even.shape)

    def heads(
        self, weight: Array, bias: Array, config: ModelConfig, dtype: str, limit: int | None = None
    ) -> tuple[Matrix, Tensor]:
        """Upload query, key and value projections as one matrix, as a model stores them."""
        device = limited(self.device, limit) if limit else self.device
        at = np.cumsum([config.n_heads, config.n_kv_heads]) * config.head_dim
        arrays = dict(zip("qkv", np.split(weight, at), strict=True))
        arrays |= dict(zip(("bq", "bk", "bv"), np.split(bias, at), strict=True))
        loader = WeightLoader(Arrays(arrays), Memory(device), dtype)
        return (
            loader.qkv("qkv", "q", "k", "v", config, config.rope_dim),
            loader.qkv_biases("bias", "bq", "bk", "bv", config, config.rope_dim),
        )


def unpack_quantized_rows(words: Array) -> tuple[Array, Array, Array]:
    """Decode rows of gpu/shaders/quantize_activations.wgsl: bytes (n_rows, blocks, 2, 16), scales
    (n_rows, blocks, 2) and sums (n_rows, blocks), float64."""
    blocks = np.ascontiguousarray(words).reshape(len(words), -1, BLOCK_WORDS)
    q = np.ascontiguousarray(blocks[..., :8]).view(np.int8)
    scales = np.ascontiguousarray(blocks[..., 8:]).view(np.float32).astype(np.float64)
    return q.astype(np.float64).reshape(*q.shape[:2], 2, 16), scales[..., :2], scales[..., 2]


@dataclass(frozen=True)
class Output:
    """A poisoned tensor and its previous contents."""

    memory: Memory
    tensor: Tensor
    before: Array
    n_rows: int
    width: int

    def read(self) -> Array:
        """Return the result; fail if anything beside its rows and columns changed."""
        after = self.memory.read(self.tensor)
        untouched = after.view(np.uint32) == self.before.view(np.uint32)
        untouched[: self.n_rows, : self.width] = True
        if not untouched.all():
            row, column = np.argwhere(~untouched)[0]
            raise AssertionError(
                f"{self.tensor!r}: wrote {after[row, column]} to row {row}, column {column}, "
                f"outside the result of {self.n_rows} rows of {self.width}"
            )
        result: Array = after[: self.n_rows, : self.width]
        return result


def compare(result: str, case: object, got: Array, want: Array, bound: Array, seed: int) -> None:
    """Fail unless |got − want| ≤ bound everywhere. `result` names what is compared."""
    want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    assert got.shape == want.shape, f"{result} {case}: shape {got.shape} instead of {want.shape}"
    error = np.abs(got - want)
    bound = np.broadcast_to(bound, want.shape) + DENORMAL
    wrong = ~(error <= bound)  # a NaN is wrong
    if wrong.any():
        size = np.where(np.isnan(error), np.inf, error / bound)
        at = tuple(int(i) for i in np.unravel_index(np.argmax(size), size.shape))
        raise AssertionError(
            f"{result} {case}, shape {want.shape}, seed {seed}: {wrong.sum()} of {wrong.size} "
            f"numbers outside their bound, the worst at {at}: got {got[at]!r}, expected "
            f"{want[at]!r}, error {error[at]:.3g}, bound {bound[at]:.3g}; "
            f"largest error {np.nanmax(error):.3g}"
        )
    relative = float(error.max() / max(np.abs(want).max(), 1.0))
    figures.add(result, Worst(relative, float((error / bound).max()), error.size))


def llama_config(**changes: Any) -> ModelConfig:
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


def rows_at(positions: list[int], slots: list[int] | None = None) -> list[Row]:
    """Return rows of a step; their tokens are not used."""
    return [Row(s, p, 0) for s, p in zip(slots or [0] * len(positions), positions, strict=True)]


def plain_rows(n: int) -> list[Row]:
    assert n <= MAX_ROWS
    return rows_at(list(range(n)))


def greedy(row: int, slot: int = 0) -> Sample:
    return Sample(row, slot, 0, 0, 0.0, 0, 1.0, 0.0, 1.0)


def _poisoned(*shape: int) -> npt.NDArray[np.float32]:
    return np.full(shape, POISON, np.uint32).view(np.float32)
