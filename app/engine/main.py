"""Main loop of the engine's process, which serves its pipe.

A process of its own because a validation error of the GPU stack aborts the process, and because
the web threads must not share an interpreter lock with the token loop. It ends when its pipe does,
and on Linux also with the server's thread that started it, so it never outlives the server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection

import msgspec

from app.engine.pipe import (
    CLOSE_SECONDS,
    HEARTBEAT_SECONDS,
    Acknowledged,
    Answered,
    CallFailed,
    Cancel,
    CancelQuestions,
    Close,
    FromEngine,
    Heartbeat,
    InspectRun,
    LoadFailed,
    Loading,
    Ready,
    RunEvent,
    RunLost,
    Submit,
    ToEngine,
    UpdateRun,
    call_failed,
)
from app.engine_client import Engine, EngineRun, Load
from app.processes.parent import end_with_parent
from gpu import DeviceError, EngineClosed, EngineError, InvalidRequest
from gpu.events import Done, Event
from gpu.inspection.requests import Answer

log = logging.getLogger(__name__)

EXIT_ENGINE_DEAD = 3
INTERNAL_ERROR = "the engine made a mistake; see the server's log"


class RunEnded(msgspec.Struct, frozen=True):
    """Internal command: a run has ended and can be dropped."""

    run: int


class CheckFailure(msgspec.Struct, frozen=True):
    """Internal command: a call failed; check whether the engine has ended."""


Command = Submit | UpdateRun | Cancel | InspectRun | RunEnded | CheckFailure
"""Command that the main thread of the engine process carries out."""


def engine_main(
    pipe: Connection, log_level: str, prepare: Callable[[], None] = lambda: None
) -> None:
    """The main function of the engine's process: `prepare`, receive the function that loads the
    engine, load it, then serve the pipe until it ends."""
    end_with_parent()  # it was started by the thread of `SupervisedEngine`
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are for the server, which then tells us
    logging.basicConfig(level=log_level.upper(), format="%(name)s: %(message)s")
    prepare()
    with contextlib.suppress(EOFError):  # no model is wanted any more
        EngineMain(pipe).serve(pipe.recv())


def end_soon() -> None:
    """End this process: in good order, but not for long."""
    threading.Event().wait(CLOSE_SECONDS)
    os._exit(1)


class EngineMain:
    """Three threads: this one calls the engine, one reads the pipe, one writes it.

    Reading apart notices the server's end even while a model is loading; writing apart lets the
    engine's thread hand over events without ever waiting for the pipe.
    """

    def __init__(self, pipe: Connection, on_hang_up: Callable[[], None] = end_soon) -> None:
        """`on_hang_up`: called on the pipe's reading thread when the server is gone or done."""
        self._pipe = pipe
        self._on_hang_up = on_hang_up
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[FromEngine | None] = queue.SimpleQueue()
        self._runs: dict[int, EngineRun] = {}
        self._engine: Engine | None = None
        self._progress_at = time.monotonic()  # how far loading is
        self._writer = threading.Thread(target=self._write, name="pipe writer", daemon=True)

    def serve(self, load: Load) -> None:
        threading.Thread(target=self._read, name="pipe reader", daemon=True).start()
        self._writer.start()
        engine = self._load(load)
        if engine is not None:
            try:
                self._serve_commands(engine)
            finally:
                engine.close()
        self._flush()

    def _load(self, load: Load) -> Engine | None:
        try:
            engine = self._engine = load(self._report_progress)
        except EngineError as error:
            self._outbox.put(LoadFailed(str(error), device=isinstance(error, DeviceError)))
            return None
        except Exception as error:
            log.exception("the model could not be loaded")
            self._outbox.put(LoadFailed(f"{type(error).__name__}: {error}"))
            return None
        self._outbox.put(Ready(engine.info))
        return engine

    def _report_progress(self, done: float, text: str) -> None:
        self._progress_at = time.monotonic()
        self._outbox.put(Loading(done, text))

    def _serve_commands(self, engine: Engine) -> None:
        while (message := self._commands.get()) is not None:
            match message:
                case Cancel(run=number):
                    if number in self._runs:
                        self._runs[number].cancel()
                case RunEnded() | CheckFailure():
                    if isinstance(message, RunEnded):
                        self._runs.pop(message.run, None)
                    if engine.failure is not None:
                        self._exit_dead(engine.failure)
                case InspectRun():
                    self._ask(engine, message)
                case CancelQuestions(asker=asker):
                    self._cancel_questions(engine, asker)
                case Submit() | UpdateRun():
                    try:
                        self._execute(engine, message)
                    except (DeviceError, EngineClosed) as error:
                        self._exit_dead(str(error))

    def _execute(self, engine: Engine, message: Submit | UpdateRun) -> None:
        """Execute a command. An update that has to wait does not delay other commands."""
        try:
            if isinstance(message, Submit):
                self._submit(engine, message)
                self._outbox.put(Acknowledged(message.call, 0))
            else:
                self._update_run(message)
        except (DeviceError, EngineClosed):
            raise
        except EngineError as error:
            self._outbox.put(call_failed(message.call, error))

    def _update_run(self, message: UpdateRun) -> None:
        run = self._runs.get(message.run)
        if run is None:
            raise InvalidRequest("this run has ended; its settings cannot change any more")

        def on_applied(index: Future[int]) -> None:
            error = index.exception()
            if error is None:
                self._outbox.put(Acknowledged(message.call, index.result()))
            else:
                self._fail_call(message.call, error)

        update = {
            "capture": message.capture,
            "interventions": message.interventions,
            "pace": message.pace,
            **message.changes,
        }
        run.start_update(**update).add_done_callback(on_applied)

    def _submit(self, engine: Engine, message: Submit) -> None:
        number = message.run

        def on_event(event: Event) -> None:
            if not isinstance(event, Done):
                self._outbox.put(RunEvent(number, event))
                return
            is_lost = event.reason == "error" and engine.failure is not None
            self._outbox.put(RunLost(number, event) if is_lost else RunEvent(number, event))
            self._commands.put(RunEnded(number))

        self._runs[number] = engine.submit(message.request, on_event)

    def _ask(self, engine: Engine, message: InspectRun) -> None:
        """Ask the engine. Its thread puts the answer in the outbox, and the writer encodes it."""

        def on_answer(future: Future[Answer]) -> None:
            error = future.exception()
            if error is None:
                self._outbox.put(Answered(message.call, future.result()))
            else:
                self._fail_call(message.call, error)

        try:
            engine.inspect(message.question, message.asker).add_done_callback(on_answer)
        except Exception as error:
            self._fail_call(message.call, error)

    def _cancel_questions(self, engine: Engine, asker: int) -> None:
        try:
            engine.cancel_questions(asker)
        except EngineClosed as error:
            self._exit_dead(str(error))

    def _fail_call(self, call: int, error: BaseException) -> None:
        if isinstance(error, EngineError):
            self._outbox.put(call_failed(call, error))
        else:
            log.error("a question could not be answered", exc_info=error)
            self._outbox.put(CallFailed(call, EngineError.code, INTERNAL_ERROR))
        self._commands.put(CheckFailure())

    def _exit_dead(self, why: str) -> None:
        """The engine stopped by itself: end, so that the server starts another process."""
        log.error("%s", why)
        self._flush()
        os._exit(EXIT_ENGINE_DEAD)

    def _flush(self) -> None:
        self._outbox.put(None)
        self._writer.join(CLOSE_SECONDS)

    # ---- the pipe's threads ------------------------------------------------------------------

    def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(ToEngine)
        try:
            while not isinstance(message := decoder.decode(self._pipe.recv_bytes()), Close):
                self._commands.put(message)
        except (EOFError, OSError):
            log.warning("the server has gone, so this engine ends")
        self._commands.put(None)
        self._on_hang_up()

    def _write(self) -> None:
        encoder = msgspec.msgpack.Encoder()
        heartbeat_at = 0.0
        try:
            while (message := self._next(heartbeat_at)) is not None:
                self._pipe.send_bytes(_encode(encoder, message))
                if isinstance(message, Heartbeat):
                    heartbeat_at = time.monotonic() + HEARTBEAT_SECONDS
        except OSError:
            return  # the reader notices too, and ends the process
        except Exception:
            log.exception("an event cannot be sent; ending the engine's process")
            os._exit(EXIT_ENGINE_DEAD)

    def _next(self, heartbeat_at: float) -> FromEngine | None:
        """Return the message to send next: a beat when one is due, else the first that waits."""
        left = heartbeat_at - time.monotonic()
        if left > 0:
            with contextlib.suppress(queue.Empty):
                return self._outbox.get(timeout=left)
        engine = self._engine
        if engine is None:
            return Heartbeat(self._progress_at)
        return Heartbeat(engine.busy_since, engine.stats)


def _encode(encoder: msgspec.msgpack.Encoder, message: FromEngine) -> bytes:
    """A message in msgpack. An answer that cannot be encoded spoils nothing but itself."""
    try:
        return encoder.encode(message)
    except TypeError:
        if not isinstance(message, Answered):
            raise
        log.exception("an answer cannot be sent")
        return encoder.encode(CallFailed(message.call, EngineError.code, INTERNAL_ERROR))
