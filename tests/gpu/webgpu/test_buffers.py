"""Memory of a device: what cannot be allocated is named."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import wgpu

from gpu.errors import DeviceError
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device


def no_memory(**given: Any) -> NoReturn:
    raise wgpu.GPUOutOfMemoryError("Not enough memory left.")


def test_a_device_without_memory_is_an_error_with_a_way_out(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(device)
    memory.zeros("keys", (1_000_000,), purpose="kv_cache")
    monkeypatch.setattr(device.wgpu, "create_buffer", no_memory)
    monkeypatch.setattr(device.wgpu, "create_texture", no_memory)
    with pytest.raises(DeviceError) as error:
        memory.weights("mlp.up", 256, 1024)
    assert str(error.value) == (
        "mlp.up: 1.0 MB could not be allocated on the device in addition to 4.0 MB (Not enough "
        "memory left.); close other programs that use it, or choose a smaller --dtype, --context "
        "or --max-num-seqs"
    )
    assert memory.n_bytes == {"kv_cache": 4_000_000}, "what was not allocated is not counted"
