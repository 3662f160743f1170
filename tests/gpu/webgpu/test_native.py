"""Native calls of the hot loop do the same as the public API."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import wgpu.backends.wgpu_native as wgpu_native

from gpu.checks.sampler_rig import settings
from gpu.errors import DeviceError
from gpu.step import Sampled
from gpu.webgpu import buffers, native
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import BufferCopy, Calls, Readback, StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.native import NativeReadback
from gpu.webgpu.timestamps import Timestamps
from tests.gpu.engine import driving
from tests.gpu.models import random_llama

ROOT = Path(__file__).parents[3]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("n_prompt", "dtype", "capture"),
    [
        pytest.param(1, "f16", True, id="one-row"),
        pytest.param(30, "f32", False, id="f32-plain", marks=pytest.mark.slow),
        pytest.param(30, "f32", True, id="f32-captured", marks=pytest.mark.slow),
        pytest.param(30, "f16", False, id="f16-plain", marks=pytest.mark.slow),
        pytest.param(30, "f16", True, id="f16-captured", marks=pytest.mark.slow),
    ],
)
def test_raw_replay_equals_checked_replay(
    device: Device, checked_device: Device, n_prompt: int, dtype: str, capture: bool
) -> None:
    """Trusted shaders and raw calls against checked shaders and wgpu-py's own. Checked shaders take
    long to compile: those of steps of one row are enough for a quick case."""
    raw_device = replace(device, checked=False)
    name = "head80_theta"
    prompt, sample = random_llama.ids(name, n_prompt), settings(temperature=0.8, top_p=0.9, seed=5)
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


@pytest.fixture(params=["native", "public"])
def calls(request: pytest.FixtureRequest, device: Device) -> Calls:
    return open_calls(replace(device, checked=request.param == "public"))


def submit_copy(calls: Calls, tensor: Tensor, readback: Readback) -> None:
    """Submit a copy of a tensor into the readback buffer."""
    commands = StepCommands(((),), (BufferCopy(tensor.buffer, tensor.n_bytes, 0),))
    calls.submit(calls.encode(calls.prepare(commands), readback), readback)


def test_a_readback_is_used_again_and_again(calls: Calls, memory: Memory) -> None:
    readback = calls.readback(64, "readback")
    for n in range(5):
        wanted = np.arange(n, n + 16, dtype=np.uint32)
        submit_copy(calls, memory.upload("source", wanted), readback)
        readback.wait()
        assert readback.read(64) == wanted.tobytes()


def test_the_first_bytes_of_a_readback_are_enough(calls: Calls, memory: Memory) -> None:
    readback = calls.readback(64, "readback")
    submit_copy(calls, memory.upload("source", np.arange(16, dtype=np.uint32)), readback)
    readback.wait()
    assert readback.read(8) == b"\0\0\0\0\1\0\0\0"


def test_a_copy_begins_where_it_says(calls: Calls, memory: Memory) -> None:
    tensor, readback = memory.upload("source", np.arange(16, dtype="u4")), calls.readback(64, "it")
    commands = StepCommands(((),), (BufferCopy(tensor.buffer, 8, 4, offset=20),))
    calls.submit(calls.encode(calls.prepare(commands), readback), readback)
    assert np.frombuffer(readback.read(12), "u4")[1:].tolist() == [5, 6]


def test_several_readbacks_are_in_flight_at_once(calls: Calls, memory: Memory) -> None:
    readbacks = [calls.readback(64, f"readback{i}") for i in range(3)]
    for i, readback in enumerate(readbacks):
        submit_copy(calls, memory.upload(f"source{i}", np.full(16, i, np.uint32)), readback)
    for i, readback in enumerate(readbacks):
        readback.wait()
        assert readback.read(4) == bytes([i, 0, 0, 0])


def test_reading_without_waiting_waits(calls: Calls, memory: Memory) -> None:
    readback = calls.readback(64, "readback")
    submit_copy(calls, memory.upload("source", np.full(16, 9, np.uint32)), readback)
    assert readback.read(4) == b"\x09\0\0\0"


def test_written_data_is_seen_by_the_next_commands(calls: Calls, memory: Memory) -> None:
    tensor = memory.zeros("numbers", (4,), "u32")
    data = bytearray(16)
    write = calls.writer(tensor.buffer, data)
    readback = calls.readback(16, "readback")
    for byte in (1, 2):
        data[:] = bytes([byte]) * 16
        write(8)
        submit_copy(calls, tensor, readback)
        readback.wait()
        assert readback.read(16) == bytes([byte]) * 8 + bytes(8)


def test_flushed_commands_can_be_waited_for(calls: Calls, device: Device, memory: Memory) -> None:
    """Readbacks are flushed in any order, and used again."""
    tensor = memory.zeros("written", (4,), "u32")
    flushed = []
    for value in range(3):
        device.wgpu.queue.write_buffer(tensor.buffer, 4 * value, np.uint32(value + 1).tobytes())
        flushed.append(calls.flush())
    for which in (2, 0, 2):
        calls.wait(flushed[which])
    assert memory.read(tensor).tolist() == [1, 2, 3, 0]
    assert None not in flushed
    if isinstance(calls, native.NativeCalls):
        numbers = [int(submission[0]) for submission in flushed]
        assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("checked", [False, True], ids=["native", "public"])
def test_no_more_is_staged_than_two_submissions(
    device: Device, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """Each submission of an upload is waited for after the next one."""
    monkeypatch.setattr(buffers, "UPLOAD_BYTES", 4096)
    memory = Memory(replace(device, checked=checked))
    made = open_calls(memory.device)
    heard: list[str] = []
    for name in ("flush", "wait"):
        call = getattr(made, name)
        noted = partial(
            lambda name, call, *given: (heard.append(name), call(*given))[1], name, call
        )
        monkeypatch.setattr(made, name, noted)
    monkeypatch.setattr(buffers, "open_calls", lambda device: made)
    numbers = np.arange(4096, dtype=np.uint32)
    assert np.array_equal(memory.read(memory.upload("numbers", numbers)), numbers)
    assert heard == ["flush", *["flush", "wait"] * 3]


@pytest.mark.parametrize("checked", [False, True], ids=["native", "public"])
def test_a_lost_device_is_an_error_a_person_can_act_on(checked: bool) -> None:
    own = Device.open(checked=checked)  # not the device that other tests share
    calls = open_calls(own)
    readback = calls.readback(64, "readback")
    submit_copy(calls, Memory(own).zeros("source", (16,)), readback)
    readback.wait()
    readback.read(4)
    own.close()
    if isinstance(readback, NativeReadback):
        readback.request(submission=0)
    with pytest.raises(DeviceError, match="the device was probably lost: restart the engine"):
        readback.read(4)


def test_timestamps_rise_from_the_begin_of_a_pass_to_its_end(calls: Calls, device: Device) -> None:
    if not device.has_pass_timestamps:
        pytest.skip(f"{device.info.name} takes no timestamps inside a pass")
    stamps = Timestamps(device, n_marks=3)
    readback = calls.readback(40, "readback")
    timing = stamps.timing(5, 0)
    commands = calls.prepare(StepCommands(((), (), (), ()), (), timing, first_mark=2))
    calls.submit(calls.encode(commands, readback), readback)
    begin, end, *marks = stamps.milliseconds(readback.read(40), 5, 0)
    assert begin <= marks[0] <= marks[1] <= marks[2] <= end < begin + 1000


# ---- without the internals ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wgpuQueueSubmitForIndex", "wgpuDeviceCreateShaderModuleTrusted"])
def test_a_native_function_that_is_gone_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kept = {n: getattr(wgpu_native.lib, n) for n in native.SIGNATURES if n != name}
    monkeypatch.setattr(wgpu_native, "lib", SimpleNamespace(**kept))
    assert native.missing_internals() == f"wgpu-native has no {name}"


def test_a_native_function_that_changed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {n: getattr(wgpu_native.lib, n) for n in native.SIGNATURES}
    functions["wgpuDevicePoll"] = functions["wgpuBufferUnmap"]
    monkeypatch.setattr(wgpu_native, "lib", SimpleNamespace(**functions))
    assert native.missing_internals() == (
        "wgpuDevicePoll is void(*)(struct WGPUBufferImpl *) instead of "
        "uint32_t(*)(struct WGPUDeviceImpl *, uint32_t, uint64_t *)"
    )


def test_a_helper_of_wgpu_py_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(wgpu_native._api, "new_struct_p")
    assert native.missing_internals() == "wgpu-py has no new_struct_p"


GENERATE = """
import json, logging, sys
import wgpu.backends.wgpu_native as wgpu_native
if sys.argv[2] == "without":
    wgpu_native.lib = object()  # hides all native functions
logging.basicConfig(format="%(message)s")
from gpu import Engine, LoadOptions, SamplingParams
engine = Engine.load(sys.argv[1], LoadOptions(dtype="f32"))
params = SamplingParams(temperature=0.9, seed=5, max_tokens=20, ignore_eos=True)
tokens = list(engine.generate([3, 5, 7], params, capture=True))
engine.close()
print(json.dumps([[t.id, t.logprob, t.times.gpu is not None] for t in tokens]))
"""


@pytest.mark.slow
def test_a_generation_without_the_internals_is_the_same_and_says_so() -> None:
    """Run in child processes, because the internals are checked on import."""
    folder = random_llama.folder("derived_head")
    outputs = []
    for internals in ("with", "without"):
        command = [sys.executable, "-c", GENERATE, str(folder), internals]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
        assert done.returncode == 0, done.stderr
        outputs.append((json.loads(done.stdout), done.stderr))
    (raw, _), (public, warning) = outputs
    assert [token[:2] for token in public] == [token[:2] for token in raw]
    assert not any(timed for *_, timed in public)
    assert "native calls are not known" in warning
    assert "(wgpu-native has no wgpuDeviceCreateCommandEnc" in warning
