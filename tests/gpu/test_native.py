"""The raw calls of the hot loop do what the public API does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu import native
from gpu.buffers import Memory, Tensor
from gpu.device import Device
from gpu.errors import DeviceError
from gpu.native import Readback
from gpu.step import Sampled
from gpu.timestamps import Timestamps
from tests.gpu import driving, random_llama
from tests.gpu.sampler_rig import settings

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("capture", [False, True], ids=["plain", "captured"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_raw_replay_equals_checked_replay(
    device: Device, checked_device: Device, dtype: str, capture: bool
) -> None:
    """Trusted shaders and raw calls against checked shaders and wgpu-py's own."""
    raw_device = replace(device, checked=False)
    name = "head80_theta"
    prompt, sample = random_llama.ids(name, 30), settings(temperature=0.8, top_p=0.9, seed=5)
    texts: list[list[Sampled]] = []
    logits = []
    for opened in (raw_device, checked_device):
        runner = driving.load(opened, random_llama.folder(name), dtype)
        texts.append(driving.generate(runner, prompt, 20, sample=sample, capture=capture))
        logits.append(driving.all_logits(runner, prompt).view(np.uint32))
    assert texts[0] == texts[1]
    assert np.array_equal(logits[0], logits[1])


@pytest.fixture
def memory(device: Device) -> Memory:
    return Memory(device)


def copy_to(readback: Readback, device: Device, tensor: Tensor) -> object:
    """Submit a copy of a tensor into the readback buffer; returns the submission."""
    encoder = device.wgpu.create_command_encoder()
    encoder.copy_buffer_to_buffer(tensor.buffer, 0, readback.buffer, 0, tensor.n_bytes)
    submission = native.submit(device.wgpu.queue, encoder.finish())
    readback.request()
    return submission


def test_a_readback_is_used_again_and_again(device: Device, memory: Memory) -> None:
    readback = Readback(device.wgpu, 64, "readback")
    for n in range(5):
        wanted = np.arange(n, n + 16, dtype=np.uint32)
        submission = copy_to(readback, device, memory.upload("source", wanted))
        native.wait(device.wgpu, submission)
        assert readback.read(64) == wanted.tobytes()


def test_the_first_bytes_of_a_readback_are_enough(device: Device, memory: Memory) -> None:
    readback = Readback(device.wgpu, 64, "readback")
    source = memory.upload("source", np.arange(16, dtype=np.uint32))
    native.wait(device.wgpu, copy_to(readback, device, source))
    assert readback.read(8) == b"\0\0\0\0\1\0\0\0"


def test_several_readbacks_are_in_flight_at_once(device: Device, memory: Memory) -> None:
    readbacks = [Readback(device.wgpu, 64, f"readback{i}") for i in range(3)]
    sources = [
        memory.upload(f"source{i}", np.full(16, i, np.uint32)) for i in range(len(readbacks))
    ]
    submissions = [
        copy_to(readback, device, source)
        for readback, source in zip(readbacks, sources, strict=True)
    ]
    for i, (readback, submission) in enumerate(zip(readbacks, submissions, strict=True)):
        native.wait(device.wgpu, submission)
        assert readback.read(4) == bytes([i, 0, 0, 0])


def test_reading_without_waiting_waits(device: Device, memory: Memory) -> None:
    readback = Readback(device.wgpu, 64, "readback")
    copy_to(readback, device, memory.upload("source", np.full(16, 9, np.uint32)))
    assert readback.read(4) == b"\x09\0\0\0"


def test_a_lost_device_is_an_error_a_person_can_act_on() -> None:
    own = Device.open()  # not the one the other tests share
    readback = Readback(own.wgpu, 64, "readback")
    own.close()
    readback.request()
    with pytest.raises(DeviceError, match="the device was probably lost: restart the engine"):
        readback.read(4)


def test_timestamps_rise_from_the_begin_of_a_pass_to_its_end(device: Device) -> None:
    if not device.has_pass_timestamps:
        pytest.skip(f"{device.info.name} takes no timestamps inside a pass")
    stamps = Timestamps(device, n_marks=3)
    readback = Readback(device.wgpu, 40, "readback")
    encoder = device.wgpu.create_command_encoder()
    compute_pass = encoder.begin_compute_pass(timestamp_writes=stamps.pass_writes)
    for mark in range(3):
        native.write_timestamp(compute_pass, stamps.query_set, 2 + mark)
    compute_pass.end()
    stamps.copy(encoder, 5, readback.buffer, 0)
    native.wait(device.wgpu, native.submit(device.wgpu.queue, encoder.finish()))
    readback.request()
    begin, end, *marks = stamps.milliseconds(readback.read(40), 5, 0)
    assert begin <= marks[0] <= marks[1] <= marks[2] <= end < begin + 1000
