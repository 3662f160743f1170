"""Steps that a thread of their own submits: what is written after a step waits for it, and an error
reaches whoever collects the step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from gpu.errors import DeviceError
from gpu.kv.host_pool import HostPool
from gpu.runners.step_queue import ReadbackSlot
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Row, Step
from gpu.webgpu import native
from gpu.webgpu.device import Device
from gpu.webgpu.submissions import Submissions
from tests.gpu.engine import driving
from tests.gpu.engine.driving import GREEDY, counted
from tests.gpu.models import random_llama

MODEL = "derived_head"
IDS = random_llama.ids(MODEL, 3)


def submitting_apart(device: Device) -> Device:
    """The device with the choices of a GPU, and a thread of its own that submits."""
    policy = replace(device.policy, submits_apart=True, steps_in_flight=3)
    return replace(device, policy=policy, submissions=Submissions())


@pytest.fixture
def runner(device: Device) -> WgpuRunner:
    """A runner whose plans for a token are recorded and whose kernels have run."""
    if device.checked:
        pytest.skip("a checked device submits at once")
    runner = driving.load(submitting_apart(device), random_llama.folder(MODEL))
    driving.begin(runner, 0, IDS, len(IDS))
    submit(runner, 0)
    runner.collect()
    return runner


def submit(runner: WgpuRunner, i: int) -> ReadbackSlot:
    runner.submit(Step((Row(0, i, IDS[i]),), (counted(GREEDY, 0, 0, i),)))
    return runner._queue._in_flight[-1]


def is_submitted(slot: ReadbackSlot) -> bool:
    assert slot.submitted is not None
    return slot.submitted.done()


WRITES: dict[str, Callable[[WgpuRunner], object]] = {
    "text": lambda runner: runner.set_text(1, np.array([1, 2], np.uint32), 1),
    "blocks": lambda runner: runner.set_blocks(1, [5]),
    "copy of a block": lambda runner: runner.copy_block(2, 3),
    "stored block": lambda runner: HostPool(runner.pools, 1, runner._memory).store_block(2, 0),
    "zeros": lambda runner: runner._memory.clear(runner._tensors.sampler.logits),
    "read": lambda runner: runner._memory.read(runner._tensors.sampler.logits),
    "first run of a kernel": lambda runner: next(runner.warm_up()),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_waits_until_the_steps_before_are_submitted(
    runner: WgpuRunner, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """WebGPU writes for whatever is submitted next, so a step must not see what came after it."""
    may_finish, calls, submissions = Event(), runner._queue._calls, runner.gpu.submissions
    finish, settle = calls.finish, submissions.settle

    def held(encoder: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            may_finish.wait()
        return finish(encoder)

    def opened() -> None:
        may_finish.set()
        settle()

    monkeypatch.setattr(calls, "finish", held)
    slot = submit(runner, 0)
    assert not is_submitted(slot)
    monkeypatch.setattr(submissions, "settle", opened)
    try:
        WRITES[write](runner)
        assert is_submitted(slot)
    finally:
        may_finish.set()
    runner.collect()


def test_the_time_of_the_threads_submission_blocks_nobody(
    runner: WgpuRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_submit, submit_now = Event(), runner._queue._calls.submit

    def held(commands: Any, to: Any) -> None:
        may_submit.wait()
        submit_now(commands, to)

    monkeypatch.setattr(runner._queue._calls, "submit", held)
    slot = submit(runner, 0)
    blocked_ms = slot.submit_ms
    may_submit.set()
    assert runner.collect().submit_ms == blocked_ms


def test_an_error_of_the_thread_reaches_the_caller(
    runner: WgpuRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it does for steps behind it, which are not submitted, and for writes; closing ends."""

    finish, encoders = runner._queue._calls.finish, list[Any]()

    def second_fails(encoder: Any) -> Any:
        encoders.append(encoder)
        if len(encoders) == 2:
            raise DeviceError("the device was lost")
        return finish(encoder)

    monkeypatch.setattr(runner._queue._calls, "finish", second_fails)
    for i in range(3):
        submit(runner, i)
    assert len(runner.collect().samples) == 1
    for _ in range(2):
        with pytest.raises(DeviceError, match="the device was lost"):
            runner.collect()
    assert len(encoders) == 2
    with pytest.raises(DeviceError, match="the device was lost"):
        runner.set_blocks(1, [5])
    runner._owns_device = False  # the tests share it
    runner.close()
    runner.gpu.submissions.close()


def test_closing_waits_for_the_steps_in_flight(runner: WgpuRunner) -> None:
    slots = [submit(runner, i) for i in range(3)]
    runner._owns_device = False
    runner.close()
    assert all(map(is_submitted, slots))
    assert not runner._queue
    thread = runner.gpu.submissions._thread
    assert thread is not None
    runner.gpu.submissions.close()
    assert not thread.is_alive()


def test_results_that_another_thread_delivers_are_waited_for(
    runner: WgpuRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wgpu calls back on the thread that finds the work done, which need not be the waiting one."""
    poll, waiting = native._poll, Event()

    class CalledBack(Event):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.set()
            return super().wait(timeout)

    def deliver(*call: Any) -> None:
        waiting.wait()
        poll(*call)

    slot = submit(runner, 0)
    monkeypatch.setattr(slot.readback, "_called_back", CalledBack())
    monkeypatch.setattr(native, "_poll", lambda *call: Thread(target=deliver, args=call).start())
    assert len(runner.collect().samples) == 1


def test_the_step_after_is_submitted_before_results_are_waited_for(
    runner: WgpuRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wgpu lets no thread submit while another waits for the device."""
    first, second, _ = (submit(runner, i) for i in range(3))
    assert second.submitted is not None
    waited, submitted, seen = first.readback.wait, second.submitted.exception, list[str]()
    monkeypatch.setattr(first.readback, "wait", lambda: (seen.append("results"), waited()))
    monkeypatch.setattr(
        second.submitted, "exception", lambda: (seen.append("next step"), submitted())[1]
    )
    runner.collect()
    assert seen == ["next step", "results"]
    runner._queue.drop()
