"""Calls through wgpu-py's public API, and the choice between them and native calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wgpu
from wgpu.backends.wgpu_native import extras

from gpu.errors import DeviceError
from gpu.webgpu.commands import Calls, PassTimestamps, StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.native import NativeCalls


def open_calls(device: Device) -> Calls:
    """Return native calls, or for a checked device public ones, which report errors where they
    happen."""
    return PublicCalls(device.wgpu) if device.checked else NativeCalls(device.wgpu)


class PublicCalls:
    """Implements `gpu.webgpu.commands.Calls`."""

    def __init__(self, device: wgpu.GPUDevice) -> None:
        self._device = device
        self._fence = PublicReadback(device, 4, "fence")

    def prepare(self, commands: StepCommands) -> StepCommands:
        return commands

    def writer(self, buffer: Any, data: bytearray) -> Callable[[int], None]:
        queue = self._device.queue
        return lambda n_bytes: queue.write_buffer(buffer, 0, data, 0, n_bytes)

    def readback(self, size: int, label: str) -> PublicReadback:
        return PublicReadback(self._device, size, label)

    def encode(self, commands: StepCommands, to: PublicReadback | None = None) -> Any:
        return self.finish(self.record(commands, to))

    def record(self, commands: StepCommands, to: PublicReadback | None = None) -> Any:
        encoder = self._device.create_command_encoder()
        timing = commands.timing
        compute_pass = encoder.begin_compute_pass(timestamp_writes=timing and _pass_writes(timing))
        for i, segment in enumerate(commands.segments):
            if i and timing is not None and commands.first_mark is not None:
                mark = commands.first_mark + i - 1
                extras.write_timestamp(compute_pass, timing.query_set, mark)
            for pipeline, bind_group, x, y, z in segment:
                compute_pass.set_pipeline(pipeline)
                compute_pass.set_bind_group(0, bind_group)
                compute_pass.dispatch_workgroups(x, y, z)
        compute_pass.end()
        if to is not None:
            _encode_copies(encoder, commands, to.buffer)
        return encoder

    def finish(self, encoder: Any) -> Any:
        return encoder.finish()

    def submit(self, command_buffer: Any, to: PublicReadback | None = None) -> None:
        self._device.queue.submit([command_buffer])

    def flush(self) -> int:
        self._device.queue.submit([])
        return 0  # `wait` waits for everything

    def wait(self, flushed: Any = None) -> None:
        """Read a buffer that is written last; `on_submitted_work_done_sync` raises TypeError in
        wgpu-py 0.32."""
        encoder = self._device.create_command_encoder()
        encoder.clear_buffer(self._fence.buffer)
        self.submit(encoder.finish(), self._fence)
        self._fence.read(4)


def _pass_writes(timing: PassTimestamps) -> dict[str, Any]:
    return {
        "query_set": timing.query_set,
        "beginning_of_pass_write_index": 0,
        "end_of_pass_write_index": 1,
    }


def _encode_copies(encoder: wgpu.GPUCommandEncoder, commands: StepCommands, to: Any) -> None:
    for copy in commands.copies:
        encoder.copy_buffer_to_buffer(copy.source, copy.offset, to, copy.at, copy.n_bytes)
    if timing := commands.timing:
        encoder.resolve_query_set(timing.query_set, 0, timing.n, timing.resolved, 0)
        encoder.copy_buffer_to_buffer(timing.resolved, 0, to, timing.at, 8 * timing.n)


class PublicReadback:
    """Implements `gpu.webgpu.commands.Readback`."""

    def __init__(self, device: wgpu.GPUDevice, size: int, label: str) -> None:
        usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        self.buffer = device.create_buffer(size=size, usage=usage, label=label)

    def wait(self) -> None:
        if self.buffer.map_state == "mapped":
            return
        try:
            self.buffer.map_sync(wgpu.MapMode.READ)
        except (wgpu.GPUError, RuntimeError) as error:
            raise DeviceError(
                f"reading results back failed ({error}); the device was probably lost: restart "
                "the engine"
            ) from error

    def read(self, n_bytes: int) -> bytes:
        self.wait()
        data = bytes(self.buffer.read_mapped(0, n_bytes))
        self.buffer.unmap()
        return data
