"""Process of a stage of a model, which an engine in another process uses.

Three connections at most: the engine's, that of the stage before, from which rows come, and that to
the stage after it. The outputs of the last stage go to the engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from gpu.checkpoint.open_model import open_model
from gpu.checkpoint.reader import weight_progress
from gpu.checkpoint.weight_cache import open_weight_cache
from gpu.errors import DeviceError, ModelError
from gpu.load_options import LoadOptions
from gpu.runners.loaded_model import StagePart
from gpu.runners.stage_connection import StageConnection
from gpu.runners.stage_listener import StageListener
from gpu.runners.stage_messages import (
    Answer,
    Call,
    Failed,
    Load,
    Loading,
    Open,
    Tell,
    WarmUp,
    decode_output,
    decode_step,
    encode_output,
    named,
)
from gpu.runners.stage_thread import StageThread
from gpu.runners.stage_worker import OutputQueue
from gpu.runners.wgpu_runner import WgpuRunner, open_device
from gpu.webgpu.device import Device

log = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
"""Time for the engine to notice by itself that another stage is gone, and to say which."""


class StageServer:
    """Runs one stage for one engine.

    host  address of this machine to listen on
    gpu   GPU for the stage unless the engine's options name one
    """

    def __init__(self, host: str, gpu: str | None = None) -> None:
        self._listener = StageListener(host)
        self.address = self._listener.address
        self._gpu = gpu

    def serve(self) -> None:
        """Serve until the engine hangs up, and end the stage."""
        engine = self._listener.accept()
        stage = ServedStage(engine, self._listener.accept, self._gpu)
        try:
            while (message := engine.receive()) is not None:
                stage.handle(message)
        except (EOFError, OSError):
            log.warning("the engine has gone, so this stage ends")
        finally:
            self._listener.close()
            stage.end()
            engine.hang_up()


class ServedStage:
    """The stage of a server, with what `Open` and `Load` make of it."""

    def __init__(
        self, engine: StageConnection, accept: Callable[[], StageConnection], gpu: str | None
    ) -> None:
        self._engine = engine
        self._accept = accept
        self._gpu = gpu
        self._name = "a stage"
        self._rows = OutputQueue()  # of the stage before
        self._thread: StageThread | None = None
        self._options = LoadOptions()
        self._device: Device | None = None

    @property
    def thread(self) -> StageThread:
        assert self._thread is not None, "Open comes first"
        return self._thread

    def handle(self, message: Any) -> None:
        """Start what a message asks for; the thread of the stage does it and answers."""
        match message:
            case bytes():
                self.thread.submit(decode_step(message))
            case Tell(function):
                self.thread.tell(function)
            case Call(call, function):
                self._answer(call, self.thread.start(lambda: function(self.thread.runner)))
            case WarmUp(call, interventions):
                self._answer(call, self.thread.start_warm_up(interventions))
            case Open(call):
                self._thread = StageThread("stage", None if message.is_first else self._rows)
                self._answer(call, self.thread.start(partial(self._open, message)))
            case Load(call):
                self._answer(call, self.thread.start_load(partial(self._load, message)))

    def end(self) -> None:
        """End the stage after all that it was given to do, and free its device."""
        self._rows.end(DeviceError("the engine has ended"))
        if self._thread is None:
            return
        self._thread.close()
        if self._device is not None and not self._thread.is_loaded:
            self._device.close()

    def _answer(self, call: int, done: Future[Any]) -> None:
        def answer(done: Future[Any]) -> None:
            error = done.exception()
            self._tell_engine(
                Answer(call, done.result()) if error is None
                else Failed(call, named(self._name, error))
            )  # fmt: skip

        done.add_done_callback(answer)

    def _tell_engine(self, message: object) -> None:
        with suppress(OSError):  # `StageServer.serve` notices that it is gone
            self._engine.send(message)

    # ---- on the stage's thread ---------------------------------------------------------------

    def _progress(self, share: float, message: str) -> None:
        self._tell_engine(Loading(share, f"{self._name}: {message}"))

    def _open(self, message: Open) -> int:
        self._name, options = message.name, message.options
        adapter = self._gpu if options.adapter is None else options.adapter
        self._options = replace(options, adapter=adapter)
        self._device = open_device(self._options, message.checked, self._progress)
        return self._device.max_binding_bytes

    def _load(self, message: Load) -> WgpuRunner:
        """Connect to the other stages first: a failure of one must not keep them waiting."""
        self._connect(message)
        options, stage = self._options, message.stage
        config, checkpoint = open_model(message.folder)
        if config != message.config:
            raise ModelError(
                f"{message.folder} is another model there than where the engine is; put the same "
                "files on all machines"
            )
        assert self._device is not None, "Open comes first"
        cache = open_weight_cache(
            checkpoint, config.of_stage(stage), options.dtype, options.weight_cache_bytes
        )
        with cache as weight_cache:
            return WgpuRunner(
                self._device,
                config,
                checkpoint,
                options,
                on_weights=weight_progress(self._progress, checkpoint, config.tie_embeddings),
                weight_cache=weight_cache,
                part=StagePart(stage, message.kv_shape),
            )

    def _connect(self, message: Load) -> None:
        """Connect to the stage after this one, and accept the one before. The last stage accepts at
        once, so no two wait for each other."""
        after = self._engine
        if message.following is not None:
            after = StageConnection.connect("the next stage", message.following)
        threading.Thread(target=self._send_outputs, args=(after,), daemon=True).start()
        if not message.stage.is_first:
            before = self._accept()
            threading.Thread(target=self._receive_rows, args=(before,), daemon=True).start()

    # ---- on threads of their own -------------------------------------------------------------

    def _send_outputs(self, after: StageConnection) -> None:
        with suppress(OSError):  # it is gone, which the engine notices
            while True:
                after.send(encode_output(self.thread.done.get(), self._name))

    def _receive_rows(self, before: StageConnection) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._rows.put(decode_output(before.receive()))
        time.sleep(GRACE_SECONDS)
        self._rows.end(DeviceError("the connection to the stage before it has ended"))
