"""Inputs of a step, which the host writes to the device before it is submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpu.ops.step_buffer import STEP_BYTES, pack_row_blocks, pack_step
from gpu.plans.plan_cache import StepTensors
from gpu.step import MAX_ROWS, Floats, Step
from gpu.webgpu.buffers import Tensor
from gpu.webgpu.commands import Calls

BlockTables = list[list[list[int]]]


class StepInputs:
    """Host memory of one step's inputs: its uniform buffer, for each further group of layers
    another one, whose rows name the blocks of that group, and the rows that the stage before has
    sent. Packed when the step is scheduled; written by the thread that submits it."""

    def __init__(self, calls: Calls, tensors: StepTensors, tables: BlockTables | None) -> None:
        self._calls = calls
        self._tables = tables
        buffers = [tensors.step.buffer, *(step.buffer for step in tensors.group_steps)]
        self._steps = [bytearray(STEP_BYTES) for _ in buffers]
        self._writers = [
            calls.writer(buffer, data) for buffer, data in zip(buffers, self._steps, strict=True)
        ]
        self._received = bytearray()
        self._receivers: dict[int, Callable[[int], None]] = {}  # by the identity of a buffer
        self._packed: Sequence[tuple[Callable[[int], None], int]] = ()

    def pack(self, step: Step, to: Tensor | None = None, received: Floats | None = None) -> None:
        """Take in a step and, if it has any, the rows that the stage before has sent; `to`: where
        the plan reads them."""
        tables, (first, *others) = self._tables, self._steps
        n_bytes = pack_step(step, first, tables[0] if tables else None)
        for data, blocks in zip(others, tables[1:] if tables else (), strict=True):
            data[:n_bytes] = first[:n_bytes]
            pack_row_blocks(step, data, blocks)
        self._packed = [(write, n_bytes) for write in self._writers]
        if to is None or received is None:
            assert to is None
            assert received is None
            return
        self._packed.append((self._receiver(to), received.nbytes))
        self._received[: received.nbytes] = np.ascontiguousarray(received).data.cast("B")

    def _receiver(self, to: Tensor) -> Callable[[int], None]:
        if not self._received:
            self._received = bytearray(4 * MAX_ROWS * to.shape[-1])
        key = id(to.buffer)
        if key not in self._receivers:
            assert to.offset == 0, f"{to!r} is not at the beginning of its buffer"
            self._receivers[key] = self._calls.writer(to.buffer, self._received)
        return self._receivers[key]

    def write(self) -> None:
        """Write what was packed, for the commands submitted next."""
        for write, n_bytes in self._packed:
            write(n_bytes)
