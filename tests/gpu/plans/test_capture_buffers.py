"""Statistics of layers take what the device has left after weights and KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import wgpu

from gpu.errors import DeviceError
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.models import random_llama

SHAPE = "derived_head"


@contextmanager
def room_for_streams(device: Device, n_bytes: int) -> Iterator[list[Any]]:
    """Let the device have room for so many bytes of residual streams. Yields their buffers."""
    create = type(device.wgpu).create_buffer
    buffers: list[Any] = []

    def create_if_there_is_room(owner: Any, *, size: int, label: str = "", **more: Any) -> Any:
        is_stream = label.startswith(("capture.states", "capture.mid_states"))
        if is_stream and size > n_bytes - sum(buffer.size for buffer in buffers):
            raise wgpu.GPUOutOfMemoryError("no room")
        buffer = create(owner, size=size, label=label, **more)
        if is_stream:
            buffers.append(buffer)
            destroy = buffer.destroy
            buffer.destroy = lambda: (buffers.remove(buffer), destroy())
        return buffer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(device.wgpu), "create_buffer", create_if_there_is_room)
        yield buffers


def test_prompts_are_captured_in_shorter_pieces_if_memory_is_short(device: Device) -> None:
    folder = random_llama.folder(SHAPE)
    with room_for_streams(device, 1 << 40) as buffers:
        roomy = driving.load(device, folder)
        whole = sum(buffer.size for buffer in buffers)
    with room_for_streams(device, whole // 3) as buffers:
        cramped = driving.load(device, folder)
        assert len(buffers) == 2
        assert cramped.limits.max_captured_rows == roomy.limits.max_captured_rows // 4
        assert roomy.memory.work - cramped.memory.work >= whole // 2
        for _ in cramped.warm_up():
            pass
        assert sum(buffer.size for buffer in buffers) <= whole // 3


def test_a_device_without_room_for_two_rows_is_refused_at_the_start(device: Device) -> None:
    refused = pytest.raises(DeviceError, match=r"capture.* could not be allocated on the device")
    with room_for_streams(device, 64), refused:
        driving.load(device, random_llama.folder(SHAPE))
