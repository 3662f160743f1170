"""Stages of a model in other processes, on this machine or others (`gpu.runners.stage_server`).

All stages open their devices at once, and load at once. Rows travel from stage to stage without
coming here; here come the outputs of the last one.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from gpu.checkpoint.reader import Progress
from gpu.runners.loaded_model import shape_kv_cache
from gpu.runners.stage_connection import StageConnection
from gpu.runners.stage_messages import (
    Answer,
    Call,
    Failed,
    Load,
    Loading,
    Open,
    StageError,
    Tell,
    WarmUp,
    decode_output,
    encode_step,
)
from gpu.runners.stage_worker import OutputQueue, StageDescription, StagedModel
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.stage_hosts import StageAddress, StageHosts
from gpu.step import Step

T = TypeVar("T")

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""Time for a stage to end before its process is killed."""


def load_remote_stages(
    model: StagedModel, hosts: StageHosts, progress: Progress
) -> list[RemoteStage]:
    """Start the processes and load the stages. Raises ModelError and DeviceError; the processes
    have ended then."""
    stages: list[RemoteStage] = []

    def lost(error: StageError) -> None:
        for stage in stages:
            stage.done.end(error)
        hosts.lost(str(error))

    try:
        progress(0.0, f"starting {len(model.stages)} stages")
        addresses = hosts.start(len(model.stages))
        joined = JoinedProgress(len(addresses), progress)
        for i, address in enumerate(addresses):
            name = f"stage {i + 1} of {len(addresses)} on {address.machine}"
            stages.append(RemoteStage(name, address, lost, partial(joined.report, i)))
        _load(model, stages, addresses)
    except BaseException:
        for stage in stages:
            stage.hang_up()
        hosts.end()
        raise
    return stages


def _load(
    model: StagedModel, stages: Sequence[RemoteStage], addresses: Sequence[StageAddress]
) -> None:
    options = model.options
    opened = []
    for i, stage in enumerate(stages):
        own = replace(options, adapter=options.adapter_of_stage(i))
        opening = partial(
            Open, name=stage.name, is_first=i == 0, options=own, checked=model.checked
        )
        opened.append(stage.ask(opening))
    kv_shape = shape_kv_cache(model.config, options, min(_results(opened)))
    loaded = []
    for i, stage in enumerate(stages):
        loading = partial(
            Load,
            folder=model.folder,
            config=model.config,
            stage=model.stages[i],
            kv_shape=kv_shape,
            following=addresses[i + 1] if i + 1 < len(addresses) else None,
        )
        loaded.append(stage.ask(loading))
    for stage, description in zip(stages, _results(loaded), strict=True):
        stage.description = description


def _results(futures: Iterable[Future[T]]) -> list[T]:
    """Return all results; raise the first error without waiting for the others."""
    futures = list(futures)
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in futures:
        if future in done:
            future.result()
    return [future.result() for future in futures]


class JoinedProgress:
    """Progress of stages that load at once, as one. Each reports its share of the whole model."""

    def __init__(self, n_stages: int, progress: Progress) -> None:
        self._shares = [0.0] * n_stages
        self._progress = progress
        self._lock = threading.Lock()

    def report(self, stage: int, share: float, message: str) -> None:
        with self._lock:
            self._shares[stage] = share
            self._progress(min(1.0, sum(self._shares)), message)


class RemoteStage:
    """A stage in another process. Implements `gpu.runners.stage_worker.StageWorker`.

    lost      called if the process is gone before it was asked to end
    progress  called with this stage's share of the model while it loads
    """

    description: StageDescription

    def __init__(
        self,
        name: str,
        address: StageAddress,
        lost: Callable[[StageError], None],
        progress: Progress,
    ) -> None:
        """Raises DeviceError if the process cannot be reached."""
        self.name = name
        self.done = OutputQueue()
        self._lost = lost
        self._progress = progress
        self._calls = itertools.count(1)
        self._answers: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._gone: StageError | None = None
        self._is_ending = False
        self._connection = StageConnection.connect(name, address)
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    def ask(self, message: Callable[[int], object]) -> Future[Any]:
        """Send `message(call)`; return the answer when it comes."""
        call, answer = next(self._calls), Future[Any]()
        with self._lock:
            if self._gone is not None:
                answer.set_exception(self._gone)
                return answer
            self._answers[call] = answer
        self._send(message(call))
        return answer

    def call(self, function: Callable[[WgpuRunner], T]) -> T:
        result: T = self.ask(partial(Call, function=function)).result()
        return result

    def tell(self, function: Callable[[WgpuRunner], None]) -> None:
        self._send(Tell(function))

    def warm_up(self, interventions: bool) -> bool:
        found: bool = self.ask(partial(WarmUp, interventions=interventions)).result()
        return found

    def submit(self, step: Step) -> None:
        self._send(encode_step(step))

    def close(self) -> None:
        """End the stage after all that it was given to do. One that does not end in time is left to
        `StageHosts.end`."""
        self._is_ending = True
        self._send(None)
        self._reader.join(CLOSE_SECONDS)
        self.hang_up()

    def hang_up(self) -> None:
        """Leave the stage, whatever it does."""
        self._is_ending = True
        self._connection.hang_up()
        self._reader.join()
        self._connection.close()

    def _send(self, message: object) -> None:
        with suppress(OSError):  # it is gone, which the reader notices too
            self._connection.send(message)

    # ---- on the thread that reads ------------------------------------------------------------

    def _read(self) -> None:
        try:
            while True:
                self._receive(self._connection.receive())
        except (EOFError, OSError):
            reason = "its process has ended, or its machine cannot be reached"
        except Exception as error:
            log.exception("%s sent a message that cannot be read", self.name)
            reason = f"it sent a message that cannot be read ({type(error).__name__})"
        gone = StageError(f"{self.name} is gone: {reason}")
        with self._lock:
            self._gone = gone
            waiting = list(self._answers.values())
            self._answers.clear()
        for answer in waiting:
            answer.set_exception(gone)
        if not self._is_ending:
            log.error("%s", gone)
            self._lost(gone)

    def _receive(self, message: Any) -> None:
        match message:
            case bytes():
                self.done.put(decode_output(message))
            case Answer(call, value):
                self._answers.pop(call).set_result(value)
            case Failed(call, error):
                self._answers.pop(call).set_exception(error)
            case Loading(share, text):
                self._progress(share, text)
