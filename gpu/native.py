"""The calls of the hot loop, straight to wgpu-native.

wgpu-py wraps each native call in an error scope and a few Python objects (about 6 µs a dispatch);
the loop that replays a plan makes hundreds of them per token. This module holds the raw calls it
uses instead (about 2 µs), and nothing else in the project touches wgpu-py's internals:

- `trusted_module`: a shader without the bounds checks naga adds,
- `encode_dispatches`, `write_timestamp`: filling a compute pass,
- `submit`: hand a command buffer to the queue and get its index,
- `wait`: block until the submission with that index is done (wgpu-py waits for the latest),
- `Readback`: a persistent buffer the host can read, mapped without extra submits.

Native errors (a Rust panic) end the process, so everything here was validated when the plan was
recorded. With `checked=True` the engine uses the public API in its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import wgpu
from wgpu.backends.wgpu_native import _api, ffi, lib

from gpu.errors import DeviceError

NULL = ffi.NULL
_set_pipeline = lib.wgpuComputePassEncoderSetPipeline
_set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
_dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
_write_timestamp = lib.wgpuComputePassEncoderWriteTimestamp

RawDispatch = tuple[Any, Any, int, int, int]
"""(pipeline handle, bind group handle, grid x, y, z)"""


def raw_dispatch(pipeline: Any, bind_group: Any, grid: tuple[int, int, int]) -> RawDispatch:
    return (pipeline._internal, bind_group._internal, *grid)


def encode_dispatches(compute_pass: Any, dispatches: Iterable[RawDispatch]) -> None:
    handle = compute_pass._internal
    for pipeline, bind_group, x, y, z in dispatches:
        _set_pipeline(handle, pipeline)
        _set_bind_group(handle, 0, bind_group, 0, NULL)
        _dispatch(handle, x, y, z)


def write_timestamp(compute_pass: Any, query_set: Any, index: int) -> None:
    _write_timestamp(compute_pass._internal, query_set._internal, index)


def timestamp_period_ns(queue: Any) -> float:
    """Nanoseconds of one tick of the device's timestamps."""
    return float(lib.wgpuQueueGetTimestampPeriod(queue._internal))


def submit(queue: Any, command_buffer: Any) -> Any:
    """Submit one command buffer; returns its index for `wait`."""
    buffers = ffi.new("WGPUCommandBuffer[1]", [command_buffer._internal])
    index = lib.wgpuQueueSubmitForIndex(queue._internal, 1, buffers)
    return ffi.new("WGPUSubmissionIndex *", index)


def wait(device: Any, submission: Any = NULL) -> None:
    """Block (without holding the interpreter lock) until `submission` is done; NULL: everything."""
    lib.wgpuDevicePoll(device._internal, True, submission)


def trusted_module(device: Any, code: str, label: str) -> Any:
    """A shader module without run-time checks. Compile the same code with
    `device.create_shader_module` first if it has never been validated: errors here are fatal."""
    source = _api.new_struct_p("WGPUShaderSourceWGSL *", code=_api.to_c_string_view(code))
    source[0].chain.next = NULL
    source[0].chain.sType = lib.WGPUSType_ShaderSourceWGSL
    descriptor = _api.new_struct_p(
        "WGPUShaderModuleDescriptor *",
        nextInChain=ffi.cast("WGPUChainedStruct *", source),
        label=_api.to_c_string_view(label),
    )
    handle = _api.libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, 0)
    return _api.GPUShaderModule(label, handle, device)


class Readback:
    """A persistent host-readable buffer of `size` bytes that GPU results are copied into.

    Cycle: the GPU copies into `.buffer`; `.request()` once that work is submitted; `wait` for the
    submission; `.read(n)` returns the bytes and makes the buffer writable by the GPU again.
    """

    def __init__(self, device: Any, size: int, label: str) -> None:
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        self.buffer = device.create_buffer(size=size, usage=usage, label=label)
        self._device = device
        self._size = size
        self._status = 0
        self._message = ""
        self._callback = ffi.callback(
            "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", self._mapped
        )
        self._info = ffi.new(
            "WGPUBufferMapCallbackInfo *",
            {"mode": lib.WGPUCallbackMode_AllowProcessEvents, "callback": self._callback},
        )

    def request(self) -> None:
        self._status = 0
        lib.wgpuBufferMapAsync(
            self.buffer._internal, lib.WGPUMapMode_Read, 0, self._size, self._info[0]
        )

    def read(self, n_bytes: int) -> bytes:
        """The first `n_bytes`. Raises DeviceError when the device was lost."""
        if self._status == 0:  # done on the GPU, but the callback has not been delivered yet
            wait(self._device)
        if self._status != lib.WGPUMapAsyncStatus_Success:
            raise DeviceError(
                f"reading results back failed (status {self._status}: {self._message or 'unknown'})"
                "; the device was probably lost: restart the engine"
            )
        pointer = lib.wgpuBufferGetConstMappedRange(self.buffer._internal, 0, self._size)
        data = bytes(ffi.buffer(pointer, n_bytes))
        lib.wgpuBufferUnmap(self.buffer._internal)
        return data

    def _mapped(self, status: int, message: Any, _user1: Any, _user2: Any) -> None:
        self._status = status
        if status != lib.WGPUMapAsyncStatus_Success:
            self._message = _api.from_c_string_view(message) or ""
