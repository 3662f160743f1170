"""Faults of the GPU while the bundled model runs in its process: the text is kept, and the engine
comes back."""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wgpu

from app import tale
from app.engine.supervisor import SupervisedEngine
from app.engine_client import Progress
from gpu import Engine, Request, SamplingParams
from gpu.events import Done, Event, Token
from tests.app.engine.processes import IDS, StartEngine, collect, pid_of
from tests.app.page import PATIENCE_S

N_BEFORE = 5

pytestmark = pytest.mark.slow


def load_faulty(fault: Callable[[Engine], None], marker: Path, progress: Progress) -> Engine:
    """Load the model. In the first process, which makes the file `marker`, the fault comes with
    the last of `N_BEFORE` tokens."""
    engine = Engine.load(tale.model_dir())
    if marker.exists():
        return engine
    marker.touch()
    submit = engine.submit

    def submit_faulty(request: Request, on_event: Callable[[Event], None]) -> Any:
        def see(event: Event) -> None:
            on_event(event)
            if isinstance(event, Token) and event.index == N_BEFORE - 1:
                fault(engine)

        return submit(request, see)

    engine.submit = submit_faulty  # type: ignore[method-assign, assignment]
    return engine


def lose_device(engine: Engine) -> None:
    """Destroy the device, as a driver does that was reset."""
    _device(engine).destroy()


def fill_device(engine: Engine) -> None:
    """Let no more memory be allocated, and need some: statistics have buffers of their own."""

    def no_memory(**given: Any) -> Any:
        raise wgpu.GPUOutOfMemoryError("Not enough memory left.")

    _device(engine).create_buffer = no_memory
    engine.submit(Request(IDS, capture=True), lambda event: None)


def _device(engine: Engine) -> Any:
    return engine._thread.runner.gpu.wgpu  # type: ignore[attr-defined]


def write(engine: SupervisedEngine, n: int) -> queue.SimpleQueue[Event]:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    params = SamplingParams(max_tokens=n, ignore_eos=True, temperature=0.0)
    engine.submit(Request(IDS, params), events.put)
    return events


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(lose_device, "the engine stopped"), (fill_device, "could not be allocated")],
)
def test_the_text_is_kept_and_the_engine_comes_back(
    start_engine: StartEngine, tmp_path: Path, fault: Callable[[Engine], None], reason: str
) -> None:
    engine = start_engine(load=functools.partial(load_faulty, fault, tmp_path / "faulty"))
    pid = pid_of(engine)
    states: queue.SimpleQueue[str] = queue.SimpleQueue()
    engine.listen(lambda status, hello: states.put(status.state))
    found = collect(write(engine, 100))
    done, tokens = found[-1], [event for event in found if isinstance(event, Token)]
    assert isinstance(done, Done)
    assert done.reason == "error"
    assert reason in done.message
    assert done.completion_tokens == len(tokens) >= N_BEFORE
    while states.get(timeout=PATIENCE_S) != "restarting":
        pass
    assert pid_of(engine) != pid
    again = collect(write(engine, N_BEFORE))
    ids = [event.id for event in again if isinstance(event, Token)]
    assert ids == [token.id for token in tokens[:N_BEFORE]]
