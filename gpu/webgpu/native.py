"""Native calls of the hot loop, straight to wgpu-native.

wgpu-py wraps each native call in an error scope and a few Python objects (about 6 µs per dispatch);
replaying a plan makes hundreds of them per token. This module makes the raw calls (about 1 µs). It
is the only one that uses wgpu-py's internals:

- `NativeCalls`: a step's commands encoded, submitted and waited for (`gpu.webgpu.commands.Calls`),
  with nothing created per step but the encoder, pass and command buffer that WebGPU demands,
- `NativeReadback`: a persistent buffer for the host, mapped without extra submits, waited for by
  submission (wgpu-py waits for the latest),
- `trusted_module`: a shader without naga's bounds checks,
- `timestamp_period_ns`: the length of a tick of the device's clock.

Native errors (a Rust panic) end the process, so everything is validated when a plan is recorded.
The internals are those of wgpu-py 0.32. If another version lacks some, `UNAVAILABLE` names one, and
devices are opened as checked ones, which use the public API.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any
from weakref import WeakKeyDictionary

import wgpu

from gpu.errors import DeviceError
from gpu.webgpu.c_types import parse_together
from gpu.webgpu.commands import StepCommands

CALLBACK_SECONDS = 10.0
"""Longest time from the end of a submission until its results can be read."""

SIGNATURES = {
    "wgpuDeviceCreateCommandEncoder": "struct WGPUCommandEncoderImpl *(*)"
    "(struct WGPUDeviceImpl *, WGPUCommandEncoderDescriptor *)",
    "wgpuCommandEncoderBeginComputePass": "struct WGPUComputePassEncoderImpl *(*)"
    "(struct WGPUCommandEncoderImpl *, WGPUComputePassDescriptor *)",
    "wgpuComputePassEncoderSetPipeline": "void(*)"
    "(struct WGPUComputePassEncoderImpl *, struct WGPUComputePipelineImpl *)",
    "wgpuComputePassEncoderSetBindGroup": "void(*)"
    "(struct WGPUComputePassEncoderImpl *, uint32_t, struct WGPUBindGroupImpl *, size_t, "
    "uint32_t *)",
    "wgpuComputePassEncoderDispatchWorkgroups": "void(*)"
    "(struct WGPUComputePassEncoderImpl *, uint32_t, uint32_t, uint32_t)",
    "wgpuComputePassEncoderWriteTimestamp": "void(*)"
    "(struct WGPUComputePassEncoderImpl *, struct WGPUQuerySetImpl *, uint32_t)",
    "wgpuComputePassEncoderEnd": "void(*)(struct WGPUComputePassEncoderImpl *)",
    "wgpuComputePassEncoderRelease": "void(*)(struct WGPUComputePassEncoderImpl *)",
    "wgpuCommandEncoderCopyBufferToBuffer": "void(*)"
    "(struct WGPUCommandEncoderImpl *, struct WGPUBufferImpl *, uint64_t, struct WGPUBufferImpl *, "
    "uint64_t, uint64_t)",
    "wgpuCommandEncoderResolveQuerySet": "void(*)"
    "(struct WGPUCommandEncoderImpl *, struct WGPUQuerySetImpl *, uint32_t, uint32_t, "
    "struct WGPUBufferImpl *, uint64_t)",
    "wgpuCommandEncoderFinish": "struct WGPUCommandBufferImpl *(*)"
    "(struct WGPUCommandEncoderImpl *, WGPUCommandBufferDescriptor *)",
    "wgpuCommandEncoderRelease": "void(*)(struct WGPUCommandEncoderImpl *)",
    "wgpuCommandBufferRelease": "void(*)(struct WGPUCommandBufferImpl *)",
    "wgpuQueueWriteBuffer": "void(*)"
    "(struct WGPUQueueImpl *, struct WGPUBufferImpl *, uint64_t, void *, size_t)",
    "wgpuQueueSubmitForIndex": "uint64_t(*)"
    "(struct WGPUQueueImpl *, size_t, struct WGPUCommandBufferImpl * *)",
    "wgpuQueueGetTimestampPeriod": "float(*)(struct WGPUQueueImpl *)",
    "wgpuDevicePoll": "uint32_t(*)(struct WGPUDeviceImpl *, uint32_t, uint64_t *)",
    "wgpuBufferMapAsync": "WGPUFuture(*)"
    "(struct WGPUBufferImpl *, uint64_t, size_t, size_t, WGPUBufferMapCallbackInfo)",
    "wgpuBufferGetConstMappedRange": "void *(*)(struct WGPUBufferImpl *, size_t, size_t)",
    "wgpuBufferUnmap": "void(*)(struct WGPUBufferImpl *)",
    "wgpuDeviceCreateShaderModuleTrusted": "struct WGPUShaderModuleImpl *(*)"
    "(struct WGPUDeviceImpl *, WGPUShaderModuleDescriptor *, uint64_t)",
}
"""C declarations of the native functions called here."""


def missing_internals() -> str:
    """Return the first internal that this wgpu-py lacks, or ""."""
    try:
        from wgpu.backends.wgpu_native import _api, ffi, lib
    except ImportError as error:
        return str(error)
    for name in ("GPUShaderModule", "from_c_string_view", "libf", "new_struct_p"):
        if not hasattr(_api, name):
            return f"wgpu-py has no {name}"
    for name, wanted in SIGNATURES.items():
        function = getattr(lib, name, None)
        if function is None:
            return f"wgpu-native has no {name}"
        if (found := ffi.typeof(function).cname) != wanted:
            return f"{name} is {found} instead of {wanted}"
    return ""


UNAVAILABLE = missing_internals()
"""Reason why the rest of this module cannot be used, or ""."""

if not UNAVAILABLE:
    from wgpu.backends.wgpu_native import _api, ffi, lib

    parse_together(ffi)
    NULL = ffi.NULL
    _create_encoder = lib.wgpuDeviceCreateCommandEncoder
    _begin_pass = lib.wgpuCommandEncoderBeginComputePass
    _set_pipeline = lib.wgpuComputePassEncoderSetPipeline
    _set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
    _dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
    _write_timestamp = lib.wgpuComputePassEncoderWriteTimestamp
    _end_pass = lib.wgpuComputePassEncoderEnd
    _copy = lib.wgpuCommandEncoderCopyBufferToBuffer
    _resolve = lib.wgpuCommandEncoderResolveQuerySet
    _finish = lib.wgpuCommandEncoderFinish
    _submit_for_index = lib.wgpuQueueSubmitForIndex
    _poll = lib.wgpuDevicePoll


NativeDispatch = tuple[Any, Any, int, int, int]
"""(pipeline handle, bind group handle, grid x, y, z)"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """`StepCommands` as native handles; `commands` keeps their objects alive."""

    commands: StepCommands
    pass_descriptor: Any
    segments: list[list[NativeDispatch]]
    copies: list[tuple[Any, int, int, int]]  # as wgpuCommandEncoderCopyBufferToBuffer takes them


class NativeCalls:
    """`gpu.webgpu.commands.Calls` without wgpu-py's wrappers."""

    def __init__(self, device: wgpu.GPUDevice) -> None:
        self._wgpu = device  # keeps the handles alive
        self._device = device._internal
        self._queue = device.queue._internal
        self._encoder_descriptor = ffi.new("WGPUCommandEncoderDescriptor *")
        self._plain_pass = ffi.new("WGPUComputePassDescriptor *")
        self._buffer_descriptor = ffi.new("WGPUCommandBufferDescriptor *")
        self._submitted = ffi.new("WGPUCommandBuffer[1]")
        self._pass_timings: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def prepare(self, commands: StepCommands) -> Prepared:
        timing = commands.timing
        return Prepared(
            commands,
            self._plain_pass if timing is None else self._timed_pass(timing.query_set),
            [
                [(pipeline._internal, group._internal, *grid) for pipeline, group, *grid in part]
                for part in commands.segments
            ],
            [(c.source._internal, c.offset, c.at, c.n_bytes) for c in commands.copies],
        )

    def _timed_pass(self, query_set: Any) -> Any:
        """Return a pass descriptor that writes queries 0 and 1."""
        if query_set not in self._pass_timings:
            writes = ffi.new("WGPUPassTimestampWrites *")
            writes.querySet = query_set._internal
            writes.beginningOfPassWriteIndex, writes.endOfPassWriteIndex = 0, 1
            descriptor = ffi.new("WGPUComputePassDescriptor *", {"timestampWrites": writes})
            self._pass_timings[query_set] = descriptor, writes
        return self._pass_timings[query_set][0]

    def writer(self, buffer: Any, data: bytearray) -> Callable[[int], None]:
        write, queue, handle = lib.wgpuQueueWriteBuffer, self._queue, buffer._internal
        pointer = ffi.from_buffer(data)
        return lambda n_bytes: write(queue, handle, 0, pointer, n_bytes)

    def readback(self, size: int, label: str) -> NativeReadback:
        return NativeReadback(self._wgpu, size, label)

    def encode(self, prepared: Prepared, to: NativeReadback | None = None) -> Any:
        return self.finish(self.record(prepared, to))

    def record(self, prepared: Prepared, to: NativeReadback | None = None) -> Any:
        encoder = _create_encoder(self._device, self._encoder_descriptor)
        compute_pass = _begin_pass(encoder, prepared.pass_descriptor)
        _encode_segments(compute_pass, prepared)
        _end_pass(compute_pass)
        lib.wgpuComputePassEncoderRelease(compute_pass)
        if to is not None:
            _encode_copies(encoder, prepared, to.handle)
        return encoder

    def finish(self, encoder: Any) -> Any:
        command_buffer = _finish(encoder, self._buffer_descriptor)
        lib.wgpuCommandEncoderRelease(encoder)
        return command_buffer

    def submit(self, command_buffer: Any, to: NativeReadback | None = None) -> None:
        self._submitted[0] = command_buffer
        index = _submit_for_index(self._queue, 1, self._submitted)
        lib.wgpuCommandBufferRelease(command_buffer)
        if to is not None:
            to.request(index)

    def flush(self) -> Any:
        return ffi.new("uint64_t *", _submit_for_index(self._queue, 0, NULL))

    def wait(self, flushed: Any = None) -> None:
        _poll(self._device, True, flushed or NULL)


def _encode_segments(compute_pass: Any, prepared: Prepared) -> None:
    first, *rest = prepared.segments
    _encode_dispatches(compute_pass, first)
    timing, query = prepared.commands.timing, prepared.commands.first_mark
    for segment in rest:
        if timing is not None and query is not None:
            _write_timestamp(compute_pass, timing.query_set._internal, query)
            query += 1
        _encode_dispatches(compute_pass, segment)


def _encode_dispatches(compute_pass: Any, dispatches: list[NativeDispatch]) -> None:
    set_pipeline, set_bind_group, dispatch = _set_pipeline, _set_bind_group, _dispatch
    for pipeline, bind_group, x, y, z in dispatches:
        set_pipeline(compute_pass, pipeline)
        set_bind_group(compute_pass, 0, bind_group, 0, NULL)
        dispatch(compute_pass, x, y, z)


def _encode_copies(encoder: Any, prepared: Prepared, destination: Any) -> None:
    for source, offset, at, n_bytes in prepared.copies:
        _copy(encoder, source, offset, destination, at, n_bytes)
    if timing := prepared.commands.timing:
        resolved = timing.resolved._internal
        _resolve(encoder, timing.query_set._internal, 0, timing.n, resolved, 0)
        _copy(encoder, resolved, 0, destination, timing.at, 8 * timing.n)


class NativeReadback:
    """Implements `gpu.webgpu.commands.Readback`."""

    def __init__(self, device: wgpu.GPUDevice, size: int, label: str) -> None:
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        self._buffer = device.create_buffer(size=size, usage=usage, label=label)
        self.handle = self._buffer._internal
        self._device = device._internal
        self._size = size
        self._submission = ffi.new("WGPUSubmissionIndex *")
        self._called_back = Event()
        self._status = 0
        self._message = ""
        self._callback = ffi.callback(
            "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", self._mapped
        )
        self._info = ffi.new(
            "WGPUBufferMapCallbackInfo *",
            {"mode": lib.WGPUCallbackMode_AllowProcessEvents, "callback": self._callback},
        )

    def request(self, submission: int) -> None:
        """Map the buffer once `submission` is done."""
        self._submission[0] = submission
        self._called_back.clear()
        lib.wgpuBufferMapAsync(self.handle, lib.WGPUMapMode_Read, 0, self._size, self._info[0])

    def wait(self) -> None:
        _poll(self._device, True, self._submission)
        # The thread that finds the work done calls back. That may be another: one that submits, or
        # wgpu-py's own, which polls after `read_buffer`.
        self._called_back.wait(CALLBACK_SECONDS)

    def read(self, n_bytes: int) -> bytes:
        if not self._called_back.is_set():
            self.wait()
        if not self._called_back.is_set():
            raise DeviceError(
                f"the device did not hand over results within {CALLBACK_SECONDS:g} s of ending the "
                "work; it was probably lost: restart the engine"
            )
        if self._status != lib.WGPUMapAsyncStatus_Success:
            raise DeviceError(
                f"reading results back failed (status {self._status}: {self._message or 'unknown'})"
                "; the device was probably lost: restart the engine"
            )
        pointer = lib.wgpuBufferGetConstMappedRange(self.handle, 0, self._size)
        data = bytes(ffi.buffer(pointer, n_bytes))
        lib.wgpuBufferUnmap(self.handle)
        return data

    def _mapped(self, status: int, message: Any, _user1: Any, _user2: Any) -> None:
        self._status = status
        if status != lib.WGPUMapAsyncStatus_Success:
            self._message = _api.from_c_string_view(message) or ""
        self._called_back.set()


def timestamp_period_ns(device: wgpu.GPUDevice) -> float:
    """Return the nanoseconds of one tick of the device's timestamps."""
    return float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal))


def trusted_module(device: wgpu.GPUDevice, code: str, label: str) -> Any:
    """Return a shader module without run-time checks. Validate the code with
    `device.create_shader_module` first: errors here are fatal."""
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
