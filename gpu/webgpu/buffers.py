"""Named ranges of device memory, and a count of bytes by purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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
"""Columns of activations and weights are padded with zeros to blocks of this size."""
TEXEL_WORDS = 4
TEXTURE_USAGE = (
    wgpu.TextureUsage.STORAGE_BINDING | wgpu.TextureUsage.COPY_DST | wgpu.TextureUsage.COPY_SRC
)
UPLOAD_BYTES = 4 << 20
"""Bytes of one upload. After each, the queue is submitted and the previous submission is waited
for. This keeps staging memory small: drivers free it only after a submission and never shrink
it."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A range of a buffer: `n_bytes` from `offset`; or a whole texture of weights, bound by `view`.

    Ops check `shape` and `dtype`. The last dimension of an activation is its stride in floats, a
    multiple of 32; columns past the logical width hold zeros.
    """

    name: str
    buffer: Any
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int
    offset: int = 0
    view: Any = None

    @property
    def binding(self) -> Any:
        """Resource of a bind group entry."""
        if self.view is not None:
            return self.view
        return {"buffer": self.buffer, "offset": self.offset, "size": self.n_bytes}

    def __repr__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


ITEM_BYTES = {"f32": 4, "u32": 4, "f16": 2}


class Memory:
    """Allocates buffers and textures on one device and counts their bytes by purpose.

    max_rows  most rows of a step; None: those of the device's policy
    """

    def __init__(self, device: Device, max_rows: int | None = None) -> None:
        self.device = device
        self.max_rows = device.policy.max_rows if max_rows is None else max_rows
        self.n_bytes: Counter[Purpose] = Counter()
        self.weight_tensors: list[Tensor] = []
        """Weights in the order of their allocation."""
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
        """Allocate a zero-filled buffer. Raises DeviceError if it exceeds the device's limits, or
        what the device has left."""
        n_bytes = max(16, -(-int(np.prod(shape)) * ITEM_BYTES[dtype] // 4) * 4)
        if n_bytes > self.device.max_binding_bytes:
            raise DeviceError(
                f"{name} needs {n_bytes:,} bytes in one buffer, but this device binds "
                f"{self.device.max_binding_bytes:,} at most"
            )
        usage = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        usage |= wgpu.BufferUsage.UNIFORM if uniform else wgpu.BufferUsage.STORAGE
        with self._allocating(name, n_bytes):
            buffer = self.device.wgpu.create_buffer(size=n_bytes, usage=usage, label=name)
        self.n_bytes[purpose] += n_bytes
        tensor = Tensor(name, buffer, shape, dtype, n_bytes)
        if purpose == "weights":
            self.weight_tensors.append(tensor)
        return tensor

    def free(self, tensor: Tensor) -> None:
        """Give back a buffer for activations of which nothing is in use."""
        tensor.buffer.destroy()
        self.n_bytes["work"] -= tensor.buffer.size

    @contextmanager
    def _allocating(self, name: str, n_bytes: int) -> Iterator[None]:
        """Raise DeviceError that names what could not be allocated and how much is in use."""
        try:
            yield
        except wgpu.GPUError as error:
            held = sum(self.n_bytes.values())
            raise DeviceError(
                f"{name}: {n_bytes / 1e6:,.1f} MB could not be allocated on the device in addition "
                f"to {held / 1e6:,.1f} MB ({error}); close other programs that use it, or choose a "
                "smaller --dtype, --context or --max-num-seqs"
            ) from error

    def weights(self, name: str, n: int, words: int, interleaved: int = 1) -> Tensor:
        """Allocate zero-filled weights: `n` rows of `words` words, `interleaved` rows together.

        A buffer, or with `DevicePolicy.weights_in_textures` a texture with a texel for four words
        and a line for each group of interleaved rows.
        """
        if not self.device.policy.weights_in_textures:
            return self.zeros(name, (n, words), "u32", purpose="weights")
        size = (words * interleaved // TEXEL_WORDS, n // interleaved, 1)
        n_bytes = 4 * n * words
        with self._allocating(name, n_bytes):
            texture = self.device.wgpu.create_texture(
                label=name, size=size, format=wgpu.TextureFormat.rgba32uint, usage=TEXTURE_USAGE
            )
        self.n_bytes["weights"] += n_bytes
        view = texture.create_view()
        self.weight_tensors.append(Tensor(name, texture, (n, words), "u32", n_bytes, view=view))
        return self.weight_tensors[-1]

    def upload(self, name: str, array: npt.NDArray[Any], *, purpose: Purpose = "weights") -> Tensor:
        """Allocate a buffer that holds `array` (float32, float16 or uint32)."""
        dtype = {"float32": "f32", "float16": "f16", "uint32": "u32"}[array.dtype.name]
        tensor = self.zeros(name, array.shape, dtype, purpose=purpose)
        self.write(tensor, array)
        return tensor

    def write(self, tensor: Tensor, array: npt.NDArray[Any], at: int = 0) -> None:
        """Copy `array` into `tensor`, `at` bytes from its start; textures take whole lines only."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if at + data.nbytes > tensor.n_bytes:
            raise ValueError(f"{data.nbytes} bytes at {at} do not fit in {tensor!r}")
        if data.nbytes % 4:  # the queue copies whole words only
            data = np.concatenate([data, np.zeros(4 - data.nbytes % 4, np.uint8)])
        step = UPLOAD_BYTES
        if tensor.view is not None:
            step = max(1, UPLOAD_BYTES // _line_bytes(tensor)) * _line_bytes(tensor)
        for start in range(0, data.nbytes, step):
            piece = data[start : start + step]
            self._stage(tensor, at + start, piece)
            self._n_staged += piece.nbytes
            if self._n_staged >= UPLOAD_BYTES:
                self._submit_staged()

    def clear(self, tensor: Tensor) -> None:
        """Fill a tensor in a buffer with zeros, for what is submitted next."""
        self.device.submissions.settle()
        encoder = self.device.wgpu.create_command_encoder(label=f"clear {tensor.name}")
        encoder.clear_buffer(tensor.buffer, tensor.offset, tensor.n_bytes)
        self.device.wgpu.queue.submit([encoder.finish()])

    def _stage(self, tensor: Tensor, at: int, piece: npt.NDArray[np.uint8]) -> None:
        self.device.submissions.settle()
        queue = self.device.wgpu.queue
        if tensor.view is None:
            queue.write_buffer(tensor.buffer, tensor.offset + at, piece)
            return
        line = _line_bytes(tensor)
        if at % line or piece.nbytes % line:
            raise ValueError(
                f"{tensor!r} is a texture and written in whole lines of {line} bytes, but got "
                f"{piece.nbytes} bytes at {at}"
            )
        to = {"texture": tensor.buffer, "origin": (0, at // line, 0)}
        size = (tensor.buffer.width, piece.nbytes // line, 1)
        queue.write_texture(to, piece, {"bytes_per_row": line}, size)

    def _submit_staged(self) -> None:
        self._n_staged = 0
        self._calls = self._calls or open_calls(self.device)
        before, self._submitted = self._submitted, self._calls.flush()
        if before is not None:
            self._calls.wait(before)

    def read(self, tensor: Tensor) -> npt.NDArray[Any]:
        """Return the tensor's contents. Creates a staging buffer and waits: for tests and
        inspection only."""
        self.device.submissions.settle()
        queue = self.device.wgpu.queue
        if tensor.view is None:
            data = queue.read_buffer(tensor.buffer, tensor.offset, tensor.n_bytes)
        else:
            size = (tensor.buffer.width, tensor.buffer.height, 1)
            layout = {"bytes_per_row": _line_bytes(tensor)}
            data = queue.read_texture({"texture": tensor.buffer}, layout, size)
        dtype = {"f32": np.float32, "u32": np.uint32, "f16": np.float16}[tensor.dtype]
        count = int(np.prod(tensor.shape))
        return np.frombuffer(data, dtype, count).reshape(tensor.shape).copy()


def _line_bytes(tensor: Tensor) -> int:
    """Return the bytes of one line of a texture."""
    return int(4 * TEXEL_WORDS * tensor.buffer.width)


def padded(width: int) -> int:
    """Return `width` rounded up to whole blocks of 32 floats, which matmuls read at a time."""
    return -(-width // BLOCK) * BLOCK
