"""Jobs in a process of their own, and the adapter that a training writes."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from app.engine.child import Child
from app.train import child
from app.train.messages import (
    LAST_EVENTS,
    Job,
    OneStep,
    StepJob,
    TrainEvent,
    TrainFailed,
    TrainJob,
    decode_event,
    encode,
)
from gpu import DeviceError, ModelError, check_lora

EXTRA = ("torch", "transformers", "peft")
MISSING = "training needs PyTorch, transformers and PEFT: pip install 'tokenglass[train]'"
"""Error if the packages of the extra `train` are not installed."""


class TrainCancelled(Exception):
    """The training was cancelled."""


def missing_packages() -> str:
    """Return what to install before an adapter can be trained; "" if all is there."""
    return "" if all(importlib.util.find_spec(name) for name in EXTRA) else MISSING


def n_threads() -> int:
    """Return the threads of a training: half of the cores that this process may use."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, n // 2)


class TrainProcess:
    """Process that does one job, which can be cancelled from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._cancelled = False

    def do(self, job: Job, on_event: Callable[[TrainEvent], None]) -> None:
        """Do a job. Raises TrainCancelled, ModelError for a model that cannot be trained, and
        DeviceError if the process ends before its time."""
        with self._lock:
            self.expect_wanted()
            process = self._child = Child(child.main, name="training")
        finished = crashed = False
        try:
            process.pipe.send_bytes(encode(job))
            while not finished:
                event = decode_event.decode(process.pipe.recv_bytes())
                if isinstance(event, TrainFailed):
                    raise ModelError(event.message)
                on_event(event)
                finished = isinstance(event, LAST_EVENTS)
        except (EOFError, OSError):
            crashed = True  # or it was cancelled
        finally:
            with self._lock:
                self._child = None
            if not crashed:  # it has no more to say, and PyTorch may take seconds to end
                process.kill("it has answered")
            how = process.wait_exit()
            process.pipe.close()
            process.release()
        self.expect_wanted()
        if not finished:
            raise DeviceError(
                f"the training process ended ({how}); its messages are in the log. If memory ran "
                "out, use a smaller model or shorter lines"
            )

    def expect_wanted(self) -> None:
        """Raise TrainCancelled if it was cancelled."""
        if self._cancelled:
            raise TrainCancelled

    def cancel(self) -> None:
        """End the process; `do` raises TrainCancelled."""
        with self._lock:
            self._cancelled = True
            if self._child is not None:
                self._child.kill("the training was cancelled")


class Training:
    """A training that can be cancelled from another thread."""

    def __init__(self, job: TrainJob) -> None:
        self._job = job
        self._process = TrainProcess()
        self.cancel = self._process.cancel

    def run(self, on_event: Callable[[TrainEvent], None]) -> None:
        """Train, and put the adapter where the job says; an older one there is replaced.

        The adapter is written to a temporary folder and checked before it is moved, so that nothing
        is left of a training that fails or is cancelled. Raises what `TrainProcess.do`
        raises.
        """
        out = Path(self._job.folder)
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".training-", dir=out.parent) as beside:
            folder = Path(beside) / "adapter"
            self._process.do(replace(self._job, folder=str(folder)), on_event)
            check_lora("trained", folder, self._job.model)
            self._process.expect_wanted()
            if out.exists():
                out.rename(Path(beside) / "before")
            folder.rename(out)


def take_step(job: StepJob) -> OneStep:
    """Take one step in a process of its own. Raises ModelError and DeviceError."""
    found: list[TrainEvent] = []
    TrainProcess().do(job, found.append)
    [answer] = found
    assert isinstance(answer, OneStep)
    return answer
