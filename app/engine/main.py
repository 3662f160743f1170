"""The engine's process, seen from inside: the loop that serves its pipe.

A process of its own because a validation error of the GPU stack aborts the process, and because
the web threads must not share an interpreter lock with the token loop. It ends when its pipe does,
so it never outlives the server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import threading
import time
from concurrent.futures import Future
from multiprocessing.connection import Connection

import msgspec

from app.engines import Engine, EngineRun, Load, hello_of
from app.pipe import (
    BEAT_SECONDS,
    CLOSE_SECONDS,
    Agreed,
    Answered,
    Ask,
    Beat,
    Cancel,
    Change,
    Close,
    Failed,
    Forget,
    FromEngine,
    Loading,
    Ready,
    Refused,
    RunEvent,
    Submit,
    ToEngine,
    refused,
)
from gpu import DeviceError, EngineClosed, EngineError, InvalidRequest
from gpu.events import Done, Event
from gpu.inspection import Answer

log = logging.getLogger(__name__)

EXIT_ENGINE_DEAD = 3
MISTAKE = "the engine made a mistake; see the server's log"


class Ended(msgspec.Struct, frozen=True):
    """The process tells itself that a run is over and can be forgotten."""

    run: int


class Failing(msgspec.Struct, frozen=True):
    """The process tells itself that something went wrong; the engine may have ended."""


Inside = Submit | Change | Cancel | Ask | Ended | Failing
"""What the process's main thread is given to do."""


def run_engine(pipe: Connection, load: Load, log_level: str) -> None:
    """The main function of the engine's process: load, then serve the pipe until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are for the server, which then tells us
    logging.basicConfig(level=log_level.upper(), format="%(name)s: %(message)s")
    EngineProcess(pipe).serve(load)


class EngineProcess:
    """Three threads: this one calls the engine, one reads the pipe, one writes it.

    Reading apart notices the server's end even while a model is loading; writing apart lets the
    engine's thread hand over events without ever waiting for the pipe.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._inbox: queue.SimpleQueue[Inside | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[FromEngine | None] = queue.SimpleQueue()
        self._runs: dict[int, EngineRun] = {}
        self._engine: Engine | None = None
        self._told_at = time.monotonic()  # how far loading is
        self._writer = threading.Thread(target=self._write, name="pipe writer", daemon=True)

    def serve(self, load: Load) -> None:
        threading.Thread(target=self._read, name="pipe reader", daemon=True).start()
        self._writer.start()
        engine = self._load(load)
        if engine is not None:
            try:
                self._serve_inbox(engine)
            finally:
                engine.close()
        self._flush()

    def _load(self, load: Load) -> Engine | None:
        try:
            engine = self._engine = load(self._tell)
        except EngineError as error:
            self._outbox.put(Failed(str(error), device=isinstance(error, DeviceError)))
            return None
        except Exception as error:
            log.exception("the model could not be loaded")
            self._outbox.put(Failed(f"{type(error).__name__}: {error}"))
            return None
        self._outbox.put(Ready(hello_of(engine.info, chat=False)))
        return engine

    def _tell(self, done: float, text: str) -> None:
        self._told_at = time.monotonic()
        self._outbox.put(Loading(done, text))

    def _serve_inbox(self, engine: Engine) -> None:
        while (message := self._inbox.get()) is not None:
            match message:
                case Cancel(run=number):
                    if number in self._runs:
                        self._runs[number].cancel()
                case Ended() | Failing():
                    if isinstance(message, Ended):
                        self._runs.pop(message.run, None)
                    if engine.failure is not None:
                        self._die(engine.failure)
                case Ask():
                    self._ask(engine, message)
                case Forget(asker=asker):
                    self._forget(engine, asker)
                case Submit() | Change():
                    try:
                        self._call(engine, message)
                    except (DeviceError, EngineClosed) as error:
                        self._die(str(error))

    def _call(self, engine: Engine, message: Submit | Change) -> None:
        """Do what is asked; what a change waits for holds up nobody else."""
        try:
            if isinstance(message, Submit):
                self._submit(engine, message)
                self._outbox.put(Agreed(message.call, 0))
            else:
                self._change(message)
        except (DeviceError, EngineClosed):
            raise
        except EngineError as error:
            self._outbox.put(refused(message.call, error))

    def _change(self, message: Change) -> None:
        run = self._runs.get(message.run)
        if run is None:
            raise InvalidRequest("this run has ended; its settings cannot change any more")

        def acts(index: Future[int]) -> None:
            error = index.exception()
            if error is None:
                self._outbox.put(Agreed(message.call, index.result()))
            else:
                self._refuse(message.call, error)

        asked = {"capture": message.capture, "reach": message.reach, **message.changes}
        run.start_update(**asked).add_done_callback(acts)

    def _submit(self, engine: Engine, message: Submit) -> None:
        number = message.run

        def on_event(event: Event) -> None:
            self._outbox.put(RunEvent(number, event))
            if isinstance(event, Done):
                self._inbox.put(Ended(number))

        self._runs[number] = engine.submit(
            message.ids,
            message.params,
            capture=message.capture,
            on_event=on_event,
            script=message.script,
            reach=message.reach,
            reached=message.reached,
        )

    def _ask(self, engine: Engine, message: Ask) -> None:
        """The answer goes from the engine's thread to the writer's, which encodes it."""

        def answered(future: Future[Answer]) -> None:
            error = future.exception()
            if error is None:
                self._outbox.put(Answered(message.call, future.result()))
            else:
                self._refuse(message.call, error)

        try:
            engine.inspect(message.question, message.asker).add_done_callback(answered)
        except Exception as error:
            self._refuse(message.call, error)

    def _forget(self, engine: Engine, asker: int) -> None:
        try:
            engine.forget(asker)
        except EngineClosed as error:
            self._die(str(error))

    def _refuse(self, call: int, error: BaseException) -> None:
        if isinstance(error, EngineError):
            self._outbox.put(refused(call, error))
        else:
            log.error("a question could not be answered", exc_info=error)
            self._outbox.put(Refused(call, EngineError.code, MISTAKE))
        self._inbox.put(Failing())

    def _die(self, why: str) -> None:
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
                self._inbox.put(message)
        except (EOFError, OSError):
            log.warning("the server is gone; so goes the engine")
        # Close in good order, but not for long.
        self._inbox.put(None)
        threading.Event().wait(CLOSE_SECONDS)
        os._exit(1)

    def _write(self) -> None:
        encoder = msgspec.msgpack.Encoder()
        beat_at = 0.0
        try:
            while (message := self._next(beat_at)) is not None:
                self._pipe.send_bytes(_encoded(encoder, message))
                if isinstance(message, Beat):
                    beat_at = time.monotonic() + BEAT_SECONDS
        except OSError:
            return  # the reader notices too, and ends the process
        except Exception:
            log.exception("an event cannot be sent; ending the engine's process")
            os._exit(EXIT_ENGINE_DEAD)

    def _next(self, beat_at: float) -> FromEngine | None:
        """Return the message to send next: a beat when one is due, else the first that waits."""
        left = beat_at - time.monotonic()
        if left > 0:
            with contextlib.suppress(queue.Empty):
                return self._outbox.get(timeout=left)
        engine = self._engine
        return Beat(self._told_at if engine is None else engine.busy_since)


def _encoded(encoder: msgspec.msgpack.Encoder, message: FromEngine) -> bytes:
    """A message in msgpack. An answer that cannot be encoded spoils nothing but itself."""
    try:
        return encoder.encode(message)
    except TypeError:
        if not isinstance(message, Answered):
            raise
        log.exception("an answer cannot be sent")
        return encoder.encode(Refused(message.call, EngineError.code, MISTAKE))
