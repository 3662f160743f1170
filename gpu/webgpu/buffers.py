"""Named pieces of device memory, and a ledger of how many bytes each purpose takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import wgpu

from gpu.errors import DeviceError
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import Calls
from gpu.webgpu.device import Device

Purpose = Literal["weights", "kv_cache", "work"]
BLOCK = 32
"""Columns of activations and weights come in blocks of so many, padded with zeros."""
UPLOAD_BYTES = 4 << 20
"""Uploads go in pieces of this size. Once as much is staged it is submitted, and what was submitted
before is waited for, so that the staging memory stays small: nothing leaves it before a submission,
and drivers keep what they once had."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A range of a buffer: `n_bytes` from `offset`. `shape` and `dtype` say what it holds and are
    checked by ops; the last dimension of an activation is its stride in floats (a multiple of 32)
    and columns past the logical width hold zeros."""

    name: str
    buffer: Any
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int
    offset: int = 0

    @property
    def binding(self) -> dict[str, Any]:
        return {"buffer": self.buffer, "offset": self.offset, "size": self.n_bytes}

    def __repr__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


ITEM_BYTES = {"f32": 4, "u32": 4, "f16": 2}


class Memory:
    """Makes buffers on one device and counts their bytes by purpose."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.n_bytes: Counter[Purpose] = Counter()
        self._n_staged = 0
        self._calls: Calls | None = None
        self._submitted: Any = None

    def zeros(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str = "f32",
        *,
        purpose: Purpose = "work",
        uniform: bool = False,
    ) -> Tensor:
        """A new buffer, zero-filled. Raises DeviceError when it exceeds the device's limits."""
        n_bytes = max(16, -(-int(np.prod(shape)) * ITEM_BYTES[dtype] // 4) * 4)
        if n_bytes > self.device.max_binding_bytes:
            raise DeviceError(
                f"{name} needs {n_bytes:,} bytes in one buffer, but this device binds "
                f"{self.device.max_binding_bytes:,} at most"
            )
        usage = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        usage |= wgpu.BufferUsage.UNIFORM if uniform else wgpu.BufferUsage.STORAGE
        buffer = self.device.wgpu.create_buffer(size=n_bytes, usage=usage, label=name)
        self.n_bytes[purpose] += n_bytes
        return Tensor(name, buffer, shape, dtype, n_bytes)

    def upload(self, name: str, array: npt.NDArray[Any], *, purpose: Purpose = "weights") -> Tensor:
        """A new buffer holding `array` (float32, float16 or uint32)."""
        dtype = {"float32": "f32", "float16": "f16", "uint32": "u32"}[array.dtype.name]
        tensor = self.zeros(name, array.shape, dtype, purpose=purpose)
        self.write(tensor, array)
        return tensor

    def write(self, tensor: Tensor, array: npt.NDArray[Any], at: int = 0) -> None:
        """Copy `array` into `tensor`, `at` bytes from its start."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if at + data.nbytes > tensor.n_bytes:
            raise ValueError(f"{data.nbytes} bytes at {at} do not fit in {tensor!r}")
        if data.nbytes % 4:  # the queue copies whole words
            data = np.concatenate([data, np.zeros(4 - data.nbytes % 4, np.uint8)])
        queue = self.device.wgpu.queue
        for start in range(0, data.nbytes, UPLOAD_BYTES):
            piece = data[start : start + UPLOAD_BYTES]
            queue.write_buffer(tensor.buffer, tensor.offset + at + start, piece)
            self._n_staged += piece.nbytes
            if self._n_staged >= UPLOAD_BYTES:
                self._submit_staged()

    def _submit_staged(self) -> None:
        self._n_staged = 0
        self._calls = self._calls or open_calls(self.device)
        before, self._submitted = self._submitted, self._calls.flush()
        if before is not None:
            self._calls.wait(before)

    def read(self, tensor: Tensor) -> npt.NDArray[Any]:
        """The tensor's contents. Creates a staging buffer and waits: for tests and inspection."""
        data = self.device.wgpu.queue.read_buffer(tensor.buffer, tensor.offset, tensor.n_bytes)
        dtype = {"f32": np.float32, "u32": np.uint32, "f16": np.float16}[tensor.dtype]
        count = int(np.prod(tensor.shape))
        return np.frombuffer(data, dtype, count).reshape(tensor.shape).copy()


def padded(width: int) -> int:
    """`width` rounded up to whole blocks of the 32 floats that products read at a time."""
    return -(-width // BLOCK) * BLOCK
