"""A device that is not there: plans are recorded on it as data, without an adapter.

It answers what recording asks of a device. Buffers have a size and a name, and keep what is written
to them; kernels are composed but not compiled; bind groups are the entries they were made of.
Nothing runs: what is submitted is dropped, and what is read back is zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.info import AdapterInfo
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DevicePolicy
from gpu.webgpu.tiling import SOFTWARE_LOADS

WEBGPU_LIMITS = {
    "max-buffer-size": 256 << 20,
    "max-storage-buffer-binding-size": 128 << 20,
    "max-compute-workgroup-storage-size": 16 << 10,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-texture-dimension-2d": 8192,
    "min-storage-buffer-offset-alignment": 256,
}
"""The limits that every WebGPU device has (WebGPU, section 3.6.2), of those the engine asks for."""


def portable_adapter(*, software: bool) -> AdapterInfo:
    """Describe the least that every browser gives: no features, default limits."""
    return AdapterInfo(
        name="WebGPU defaults",
        driver="",
        backend="WebGPU",
        kind="software device" if software else "integrated GPU",
        software=software,
        limits=WEBGPU_LIMITS,
    )


def open_null_device(info: AdapterInfo) -> Device:
    """Return a device that is described by `info` and not there."""
    policy = DevicePolicy.of(info)
    can_shuffle = "subgroup" in info.features
    usable = can_shuffle or not policy.tuning.subgroup_shuffle
    return Device(_NullGpu(), info, True, policy.tuning if usable else SOFTWARE_LOADS, policy)


class NullBuffer:
    """A buffer without memory, until something is written to it."""

    def __init__(self, size: int, usage: int, label: str) -> None:
        self.size = size
        self.usage = usage
        self.label = label
        self.contents: npt.NDArray[np.uint8] | None = None
        self.map_state = "unmapped"

    def write(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        if self.contents is None:
            self.contents = np.zeros(self.size, np.uint8)
        self.contents[offset : offset + len(data)] = data

    def map_sync(self, mode: int) -> None: ...

    def read_mapped(self, offset: int, size: int) -> bytes:
        return bytes(size)

    def unmap(self) -> None: ...


class _NullQueue:
    def write_buffer(
        self,
        buffer: NullBuffer,
        offset: int,
        data: Any,
        data_offset: int = 0,
        size: int | None = None,
    ) -> None:
        whole = np.frombuffer(data, np.uint8)
        end = len(whole) if size is None else data_offset + size
        buffer.write(offset, whole[data_offset:end])

    def read_buffer(self, buffer: NullBuffer, offset: int, size: int) -> bytes:
        return bytes(size)

    def submit(self, command_buffers: list[Any]) -> None: ...


class _NullEncoder:
    """Takes every command and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: self


class _NullGpu:
    """Stands in for a `wgpu.GPUDevice`."""

    def __init__(self) -> None:
        self.queue = _NullQueue()

    def create_buffer(self, *, size: int, usage: int, label: str = "") -> NullBuffer:
        return NullBuffer(size, usage, label)

    def create_bind_group_layout(self, *, label: str, entries: list[Any]) -> list[Any]:
        return entries

    def create_bind_group(
        self, *, label: str, layout: Any, entries: list[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        return entries

    def create_pipeline_layout(self, *, bind_group_layouts: list[Any]) -> None: ...

    def create_shader_module(self, *, label: str, code: str) -> str:
        return code

    def create_compute_pipeline(self, *, label: str, layout: Any, compute: Any) -> None: ...

    def create_command_encoder(self, *, label: str = "") -> _NullEncoder:
        return _NullEncoder()

    def destroy(self) -> None: ...
