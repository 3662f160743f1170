"""Packs rows of weights on the device, with the bits of `gpu.checkpoint.packing.pack`."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.packing import BLOCK, pack, row_words
from gpu.webgpu.buffers import Memory
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import BufferCopy, PassDispatch, StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Recorder

LANE_BLOCKS = {"q8": 2, "q4": 1}
"""Blocks of an invocation of shaders/packing: those whose scales share a word."""
WORKGROUP = 64
CHUNK_WEIGHTS = 1 << 19
"""Most weights that are packed at a time: 2 MiB of float32."""
CHUNK_WORDS = CHUNK_WEIGHTS // BLOCK * row_words("q8", BLOCK)
"""Words of such a chunk whose rows are as short as they can be."""

log = logging.getLogger(__name__)


class DevicePacker:
    """Packs rows by shaders/packing. Rows go to the device as float32, and packed words come back,
    as the weight cache needs them too. For one thread.

    The host packs the first chunk of a storage type, too: a device whose compiler gives other bits
    packs no more of it.
    """

    def __init__(self, device: Device) -> None:
        memory = self._memory = Memory(device)
        self._kernels = Kernels(device)
        self._chunk = memory.zeros("pack.chunk", (4,), "u32", uniform=True)
        self._weights = memory.zeros("pack.weights", (CHUNK_WEIGHTS,))
        self._words = memory.zeros("pack.words", (CHUNK_WORDS,), "u32")
        self._left = memory.zeros("pack.left", (1,), "u32")
        self._recorders = {dtype: self._record(dtype) for dtype in LANE_BLOCKS}
        self._calls = open_calls(device)
        self._readback = self._calls.readback(self._words.n_bytes + self._left.n_bytes, "pack")
        self._n_left = 0  # blocks that were left to the host so far
        self._is_exact: dict[str, bool] = {}

    def packs(self, dtype: str) -> bool:
        """Return whether the device packs this type, as far as is known. From any thread."""
        return self._is_exact.get(dtype, True)

    def pack(
        self, dtype: str, rows: npt.NDArray[np.float32], name: str, out: npt.NDArray[np.uint32]
    ) -> None:
        """Pack rows (n, k) into `out` (n, row_words). The host packs rows that are no whole blocks,
        and chunks in which the device has left it a block.

        Raises ModelError with `name` for weights that the format cannot hold.
        """
        n, k = rows.shape
        step = n if k % BLOCK else max(1, CHUNK_WEIGHTS // k)
        for first in range(0, n, step):
            some = slice(first, min(first + step, n))
            if k % BLOCK or k > CHUNK_WEIGHTS or not self._packed(dtype, rows[some], out[some]):
                pack(dtype, rows[some], name, out[some])

    def close(self) -> None:
        """Free the memory on the device."""
        self._kernels.close()
        for tensor in (self._chunk, self._weights, self._words, self._left):
            tensor.buffer.destroy()

    def _record(self, dtype: str) -> Recorder:
        recorder = Recorder(self._memory.device, self._kernels)
        tensors = {
            "chunk": self._chunk,
            "weights": self._weights,
            "words": self._words,
            "left": self._left,
        }
        constants = {"WORKGROUP": WORKGROUP}
        recorder.dispatch("pack", f"packing/quantize_{dtype}", tensors, (1, 1, 1), constants)
        return recorder

    def _packed(
        self, dtype: str, rows: npt.NDArray[np.float32], out: npt.NDArray[np.uint32]
    ) -> bool:
        """Pack a chunk into `out`; return whether it has the bits that the host gives."""
        if not self.packs(dtype) or not self._run(dtype, rows, out):
            return False
        if dtype not in self._is_exact:
            self._is_exact[dtype] = np.array_equal(out, pack(dtype, rows))
            if not self._is_exact[dtype]:
                name = self._memory.device.info.name
                log.warning("%s quantises weights inexactly, so the host does it", name)
        return self._is_exact[dtype]

    def _run(self, dtype: str, rows: npt.NDArray[np.float32], out: npt.NDArray[np.uint32]) -> bool:
        """Pack a chunk into `out`; return whether the device has left no block to the host."""
        n, row_blocks = len(rows), rows.shape[1] // BLOCK
        chunk = np.array([n * row_blocks, row_blocks, out.shape[1], 0], np.uint32)
        self._memory.write(self._chunk, chunk)
        self._memory.write(self._weights, rows)
        lanes = n * -(-row_blocks // LANE_BLOCKS[dtype])
        pipeline, bind_group, *_ = self._recorders[dtype].plan.dispatches[0].in_pass
        dispatch: PassDispatch = (pipeline, bind_group, -(-lanes // WORKGROUP), 1, 1)
        copies = (
            BufferCopy(self._words.buffer, out.nbytes, 0),
            BufferCopy(self._left.buffer, 4, out.nbytes),
        )
        commands = self._calls.prepare(StepCommands(((dispatch,),), copies))
        self._calls.submit(self._calls.encode(commands, self._readback), self._readback)
        self._readback.wait()
        words = np.frombuffer(self._readback.read(out.nbytes + 4), np.uint32)
        out[:] = words[:-1].reshape(out.shape)
        before, self._n_left = self._n_left, int(words[-1])
        return self._n_left == before
