"""Slow path of a step: dispatch by dispatch, by kernels that keep their bounds checks.

After each dispatch its results are read, so it is known which is the first that leaves a number
that is not finite, and in which row. Used after a step whose output was not a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gpu.kv.pools import KvPools
from gpu.models.decoder import Decoder
from gpu.ops.batch import KvSplits
from gpu.plans.plan_cache import RecordedPlan
from gpu.step import NonFinite, Row, Step
from gpu.webgpu.buffers import ITEM_BYTES, Memory, Tensor
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Dispatch

_LAYER = re.compile(r"layer(\d+)\.")
FLOATS = ("f32", "f16")
CHECKED_COLUMNS = 6000
"""Most columns of a matrix whose checked kernels run on software devices: beyond, Mesa's ends their
loops early (`gpu.webgpu.device.Device`)."""


class CheckedRun:
    """Runs dispatches of a model one by one; `found` is the first with a result that is not finite.

    A run needs a `recorded` plan and a step that has been written.
    """

    def __init__(
        self, memory: Memory, pools: KvPools, splits: KvSplits | None, kernels: Kernels
    ) -> None:
        """`kernels`: compiled with bounds checks."""
        self._memory, self._pools, self._splits, self._kernels = memory, pools, splits, kernels
        self._calls = open_calls(memory.device)
        self._step = Step(())
        self.found: NonFinite | None = None

    def begin(self, recorded: RecordedPlan, step: Step) -> None:
        """Clear what the plan writes except the KV cache: earlier steps left numbers in the rows
        that this step does not use."""
        self._step, self.found = step, None
        for dispatch in recorded.plan.dispatches:
            for tensor in _results(dispatch):
                if not self._is_cache(tensor):
                    self._memory.clear(tensor)

    def run(self, dispatch: Dispatch) -> None:
        """Run a dispatch, and read its results unless an earlier one was wrong."""
        kernel = self._kernels.compiled_again(dispatch.kernel)
        in_pass = (kernel.pipeline, dispatch.bind_group, *dispatch.grid)
        self._calls.submit(self._calls.encode(self._calls.prepare(StepCommands(((in_pass,),)))))
        self._calls.wait()
        for tensor in () if self.found else _results(dispatch):
            wrong, rows = self._wrong(dispatch, tensor)
            if wrong.any():
                row = rows[int(np.argmax(wrong.reshape(len(rows), -1).any(axis=1)))]
                layer = _LAYER.match(dispatch.label)
                self.found = NonFinite(
                    layer=int(layer[1]) if layer else None,
                    op=dispatch.label[layer.end() :] if layer else dispatch.label,
                    kernel=dispatch.kernel.name,
                    position=row.position,
                    n_wrong=int(wrong.sum()),
                    n_numbers=wrong.size,
                )
                return

    def close(self) -> None:
        self._kernels.close()

    def _wrong(
        self, dispatch: Dispatch, tensor: Tensor
    ) -> tuple[npt.NDArray[np.bool_], Sequence[Row]]:
        """Return which numbers of a result are not finite, and the row of each of its lines."""
        rows = self._step.rows
        if self._is_cache(tensor):
            return self._wrong_in_cache(dispatch, tensor), rows
        if self._splits and tensor in (self._splits.values, self._splits.states):
            most = self._memory.device.policy.split_rows
            lines = [rows[min(i % most, len(rows) - 1)] for i in range(tensor.shape[0])]
        elif tensor.name == "logits":
            lines = [rows[sample.row] for sample in self._step.samples]
        else:
            # Of experts, a row has as many lines as it has experts.
            per_row = max(1, tensor.shape[0] // self._memory.max_rows)
            n_lines = min(len(rows) * per_row, tensor.shape[0])
            lines = [rows[i // per_row] for i in range(n_lines)]
        width = int(np.prod(tensor.shape[1:]))
        n_bytes = len(lines) * width * ITEM_BYTES[tensor.dtype]
        part = replace(tensor, shape=(len(lines), width), n_bytes=-(-n_bytes // 4) * 4)
        return ~np.isfinite(self._memory.read(part)), lines

    def _wrong_in_cache(self, dispatch: Dispatch, pool: Tensor) -> npt.NDArray[np.bool_]:
        """Return which of the numbers that the rows have in a pool are not finite."""
        layer = _LAYER.match(dispatch.label)
        assert layer is not None, f"{dispatch.label} writes to the cache outside of any layer"
        blocks = self._pools.blocks[self._pools.group_of(int(layer[1]))]
        n_blocks, *shape = pool.shape
        n_bytes = pool.n_bytes // n_blocks
        found = []
        for row in self._step.rows:
            place, cell = divmod(row.position, shape[1])
            at = pool.offset + blocks[row.slot][place] * n_bytes
            part = replace(pool, shape=tuple(shape), offset=at, n_bytes=n_bytes)
            found.append(~np.isfinite(self._memory.read(part)[:, cell]))
        return np.stack(found)

    def _is_cache(self, tensor: Tensor) -> bool:
        return any(tensor.buffer is p.pool.buffer for p in self._pools.block_parts)


def checked_kernels(device: Device, model: Decoder) -> Kernels:
    """Return the kernels for a checked run of a model."""
    widest = max(matrix.k for matrix in model.matrices())
    can_check = not device.info.software or widest <= CHECKED_COLUMNS
    return Kernels(replace(device, checked=True) if can_check else device)


def _results(dispatch: Dispatch) -> list[Tensor]:
    """Return the tensors of floats that a dispatch writes."""
    written = [dispatch.tensors[b.name] for b in dispatch.kernel.bindings if b.kind == "storage"]
    return [tensor for tensor in written if tensor.dtype in FLOATS]
