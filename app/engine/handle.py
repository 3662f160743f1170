"""Client side of one engine process: sends commands, routes replies."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from app.engine.child import KILL_SECONDS, Child, EngineProcess
from app.engine.heartbeat import STILL_LOADING, Timeouts, Watchdog
from app.engine.main import engine_main
from app.engine.pipe import (
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
    error_of,
)
from app.engine.pipe_writer import PipeWriter
from app.engine_client import Load, LostRun, OnEvent, UnavailableError
from gpu import EngineStats, Interventions, InvalidRequest, PaceChange, Request
from gpu.events import Done, Event, Prefill, Timings, Token
from gpu.inspection.requests import Answer, Question

log = logging.getLogger(__name__)

T = TypeVar("T")

CALL_SECONDS = 30.0


class RemoteRun:
    """A run in the engine's process."""

    def __init__(self, handle: EngineHandle, number: int, n_prompt: int, on_event: OnEvent) -> None:
        self._handle = handle
        self._number = number
        self._n_prompt = n_prompt
        self._on_event = on_event
        self._submitted = time.perf_counter()
        self._n_reused = self._n_computed = 0  # of the prompt's tokens
        self._n_tokens = 0
        self._first = 0.0  # when the first and the last token came, in seconds since the request
        self._last = 0.0

    def update(
        self,
        *,
        capture: bool | None = None,
        interventions: Interventions | None = None,
        pace: PaceChange | None = None,
        **changes: Any,
    ) -> int:
        return self._handle.call(
            lambda call: UpdateRun(call, self._number, changes, capture, interventions, pace)
        )

    def cancel(self) -> None:
        self._handle.send(Cancel(self._number), force=True)

    def on_event(self, event: Event) -> None:
        if isinstance(event, Prefill):
            self._n_reused, self._n_computed = event.reused, event.done - event.reused
        if isinstance(event, Token):
            self._last = time.perf_counter() - self._submitted
            self._first = self._first or self._last
            self._n_tokens += 1
        try:
            self._on_event(event)
        except Exception:
            log.exception("an event could not be handed on")

    def fail(self, message: str) -> None:
        """End the run, after its process is gone, with the timings measured on this side."""
        first, seconds, n_tokens = self._first, self._last - self._first, self._n_tokens
        timings = Timings(
            cache_n=self._n_reused,
            prompt_n=self._n_computed,
            prompt_ms=1000 * first,
            prompt_per_second=self._n_computed / first if first else 0.0,
            predicted_n=n_tokens,
            predicted_ms=1000 * seconds,
            predicted_per_second=(n_tokens - 1) / seconds if seconds else 0.0,
            queue_ms=0.0,
            ttft_ms=1000 * first,
            tpot_ms=1000 * seconds / max(1, n_tokens - 1),
        )
        self.on_event(LostRun("error", self._n_prompt, n_tokens, timings, message))


StartProcess = Callable[[Load, str], EngineProcess]
"""start_process(load, log_level) starts a process that loads an engine with `load` and serves it.
Raises OSError or RuntimeError."""


def start_child(load: Load, log_level: str) -> Child:
    """Start an engine in a process of this machine."""
    return _give(Child(engine_main, log_level), load)


class EarlyChild:
    """Starts engines as `start_child` does, the first of them early: its process imports what the
    engine needs while the files of its model are fetched and checked."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        """`prepare`: runs in the process that is started early, and does the imports."""
        self._prepare = prepare
        self._child: Child | None = None

    def begin(self, log_level: str) -> None:
        """Start the process, which then waits for a model. If the system has no room for it,
        `__call__` tries again, and says so."""
        with contextlib.suppress(OSError, RuntimeError):
            self._child = Child(engine_main, log_level, self._prepare)

    def __call__(self, load: Load, log_level: str) -> Child:
        child, self._child = self._child, None
        return start_child(load, log_level) if child is None else _give(child, load)

    def close(self) -> None:
        """End the process if it still waits for a model. May be called by any thread."""
        child, self._child = self._child, None
        if child is not None:
            _end(child, "no model was loaded")


def _give(child: Child, load: Load) -> Child:
    """Send a process the function that loads its engine. Raises OSError if it has ended."""
    try:
        child.pipe.send(load)
    except BaseException:
        _end(child, "it could not be sent a model")
        raise
    return child


def _end(child: Child, reason: str) -> None:
    child.kill(reason)
    child.wait_exit()
    child.release()
    child.pipe.close()


class EngineHandle:
    """One engine process with its runs and calls. Raises what `start` raises."""

    def __init__(
        self,
        load: Load,
        log_level: str,
        timeouts: Timeouts,
        start: StartProcess = start_child,
    ) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._alive = True
        self._calls: dict[int, Future[Any]] = {}
        self._runs: dict[int, RemoteRun] = {}
        self.stats: EngineStats | None = None
        """Statistics of the last heartbeat; None until the model is loaded, and once the process
        has ended."""
        self._reports: queue.SimpleQueue[Loading | Ready | LoadFailed | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="pipe reader", daemon=True)
        self._child = start(load, log_level)
        try:
            self._writer = PipeWriter(self._child.pipe)
            self._watchdog = Watchdog(timeouts, self._kill)
            self._reader.start()
        except BaseException:  # no more threads can be started
            self._child.kill("it could not be served")
            self._child.wait_exit()
            raise

    @property
    def pid(self) -> int | None:
        """Process id; None once the process has been released."""
        return self._child.pid

    # ---- to the engine -----------------------------------------------------------------------

    def submit(self, request: Request, on_event: OnEvent) -> RemoteRun:
        number = next(self._numbers)
        run = RemoteRun(self, number, len(request.ids), on_event)
        self._register(self._runs, number, run)
        try:
            self.call(lambda call: Submit(call, number, request))
        except BaseException:
            self._runs.pop(number, None)
            self.send(Cancel(number), force=True)  # it may be carried out later
            raise
        return run

    def call(self, message: Callable[[int], ToEngine]) -> int:
        """Send `message(call)` and return the answer. Raises the error of the reply."""
        number = next(self._numbers)
        future: Future[int] = Future()
        self._register(self._calls, number, future)
        try:
            self.send(message(number))
            return future.result(CALL_SECONDS)
        except TimeoutError:
            raise UnavailableError(
                f"the engine did not answer within {CALL_SECONDS:g} s; try again in a moment"
            ) from None
        finally:
            self._calls.pop(number, None)

    def cancel_questions(self, asker: int) -> None:
        with contextlib.suppress(UnavailableError):
            self.send(CancelQuestions(asker))

    def ask(self, question: Question, asker: int = 0) -> Future[Answer]:
        """Send a question. The future is completed on the thread that reads the pipe."""
        number = next(self._numbers)
        future: Future[Answer] = Future()
        self._register(self._calls, number, future)
        try:
            self.send(InspectRun(number, question, asker))
        except BaseException:
            self._calls.pop(number, None)
            raise
        return future

    def send(self, message: ToEngine, *, force: bool = False) -> None:
        """Queue a message and return at once. If the process is gone the message is dropped, and
        `dispose` fails its call. Raises UnavailableError if the process does not read, unless
        `force`."""
        try:
            encoded = msgspec.msgpack.encode(message)
        except OverflowError:
            raise InvalidRequest("a number in the request has more than 64 bits") from None
        self._writer.send(encoded, force=force)

    def close(self) -> None:
        """Ask the process to end; it is killed if it does not, and at once if it is still loading.
        Does not wait for its end."""
        self.send(Close(), force=True)
        self._watchdog.closing()

    def _register(self, table: dict[int, Any], number: int, value: Any) -> None:
        with self._lock:
            if not self._alive:
                raise UnavailableError("the engine is restarting; try again in a moment")
            table[number] = value

    # ---- from the engine ---------------------------------------------------------------------

    def receive(self) -> Iterator[Loading | Ready | LoadFailed]:
        """Yield what the process reports about itself, until it ends."""
        while (message := self._reports.get()) is not None:
            yield message

    def _read(self) -> None:
        """Route events and answers to their runs and calls, and all else to `receive`."""
        decoder = msgspec.msgpack.Decoder(FromEngine)
        try:
            while True:
                message = decoder.decode(self._child.pipe.recv_bytes())
                self._watchdog.heard()
                self._route(message)
        except (EOFError, OSError):
            pass
        except Exception:
            log.exception("the engine's process sent a message that cannot be read")
            self._kill("it sent a message that cannot be read")
        finally:
            self._reports.put(None)

    def _route(self, message: FromEngine) -> None:
        match message:
            case RunEvent(run=number, event=event):
                ended = isinstance(event, Done)
                run = self._runs.pop(number, None) if ended else self._runs.get(number)
                if run is not None:
                    run.on_event(event)
            case RunLost(run=number, event=done):
                if (run := self._runs.pop(number, None)) is not None:
                    run.on_event(LostRun(*msgspec.structs.astuple(done)))
            case Acknowledged(call=number, index=result) | Answered(call=number, answer=result):
                if (future := self._calls.pop(number, None)) is not None:
                    future.set_result(result)
            case CallFailed(call=number):
                if (future := self._calls.pop(number, None)) is not None:
                    future.set_exception(error_of(message))
            case Heartbeat():
                self.stats = message.stats
                self._watchdog.heartbeat(message.busy_since)
            case Ready():
                self._watchdog.ready()
                self._reports.put(message)
            case _:
                self._reports.put(message)

    # ---- the end -----------------------------------------------------------------------------

    def _kill(self, reason: str) -> None:
        level = logging.DEBUG if reason == STILL_LOADING else logging.ERROR
        log.log(level, "killing the engine's process: %s", reason)
        if not self._child.kill(reason):
            self._reports.put(None)  # nobody waits for a process that cannot be ended

    def wait_exit(self) -> str:
        """Return how the process ended. To be called when `receive` has ended."""
        how = self._child.wait_exit()
        self._watchdog.stop()
        return how

    def dispose(self, message: str) -> None:
        """Fail all calls and runs, and free the resources. Call `wait_exit` first."""
        with self._lock:
            self._alive = False
        self.stats = None
        for future in _drain(self._calls):
            future.set_exception(UnavailableError(message))
        for run in _drain(self._runs):
            run.fail(message)
        if not self._child.release():
            return
        self._reader.join(KILL_SECONDS)
        # A descriptor that a thread still uses must not be given to somebody else.
        if self._writer.stop(KILL_SECONDS) and not self._reader.is_alive():
            self._child.pipe.close()


def _drain(table: dict[int, T]) -> Iterator[T]:
    """Remove and yield all values; the thread that reads the pipe may take some of them first."""
    with contextlib.suppress(KeyError):
        while True:
            yield table.popitem()[1]
