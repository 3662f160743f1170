"""Supervision of the engine's process: start it, send it requests, restart it when it dies."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from app.engine.backoff import Backoff, RestartPolicy
from app.engine.handle import EarlyChild, EngineHandle, RemoteRun, StartProcess, start_child
from app.engine.heartbeat import Timeouts
from app.engine.pipe import LoadFailed, Loading, Ready
from app.engine_client import EngineClient, Load, OnEvent, ServedModel, Tokenizer
from app.models.transfer import Cancelled, OnTransfer, Transfer
from app.protocol.messages import Hello, Status
from gpu import EngineError, EngineStats, Request
from gpu.inspection.requests import Answer, Question

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 9.0
"""Longest time that closing takes, whatever the engine does."""

Fetch = Callable[[OnTransfer, Callable[[], bool]], None]
"""Fetches a model's files; gets a callback for progress and a function that says when to stop. It
may switch to another model."""


class SupervisedEngine(EngineClient):
    """The engine in a process of its own, restarted when it dies, hangs or is frozen.

    `fetch` first brings the files that the model lacks; the state has the progress. The state is
    `failed`, and nothing is tried again, if the model cannot be fetched or loaded, or if the first
    processes of this server die while loading more often than `restart_policy` allows. Any later
    process that dies is restarted, after longer and longer pauses.
    """

    def __init__(
        self,
        load: Load,
        tokenizer: Tokenizer,
        log_level: str = "info",
        path: Path | None = None,
        fetch: Fetch | None = None,
        *,
        timeouts: Timeouts | None = None,
        restart_policy: RestartPolicy | None = None,
        start_process: StartProcess | EarlyChild = start_child,
    ) -> None:
        """`start_process`: with an `EarlyChild`, the first process starts while `fetch` runs."""
        super().__init__(tokenizer, path)
        self._load = load
        self._fetch = fetch
        self._log_level = log_level
        self._start_process = start_process
        self._early = start_process if isinstance(start_process, EarlyChild) else None
        self._timeouts = timeouts or Timeouts()
        self._backoff = Backoff(restart_policy or RestartPolicy())
        self._handle: EngineHandle | None = None
        self._closing = threading.Event()
        self._wake = threading.Event()  # set to close, or to serve another model
        self._next_model: ServedModel | None = None
        self._switch_lock = threading.Lock()  # of `_next_model` and the state
        self._note = ""  # of the served model
        self._was_ready = False
        self._could_load = False  # whether the served model was loaded once
        self._thread = threading.Thread(target=self._supervise, name="engine", daemon=True)

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None while there is no process."""
        return None if self._handle is None else self._handle.pid

    @property
    def stats(self) -> EngineStats | None:
        return None if self._handle is None else self._handle.stats

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request, on_event: OnEvent) -> RemoteRun:
        self.require_ready()
        handle = self._handle
        assert handle is not None
        return handle.submit(request, on_event)

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        self.require_ready()
        handle = self._handle
        assert handle is not None
        return handle.ask(question, asker)

    def cancel_questions(self, asker: int) -> None:
        if self._handle is not None:
            self._handle.cancel_questions(asker)

    def switch(self, served: ServedModel) -> None:
        with self._switch_lock:
            self._next_model = served
            handle = self._handle
            ending = "starting the engine" if handle is None else "ending the model before"
            self._set_state(Status("loading", ending, 0.0))
        if handle is not None:
            handle.close()
        self._wake.set()

    def reload(self) -> None:
        self.switch(ServedModel(self._load, self.tokenizer, self.path, self._note))

    def close(self) -> None:
        """End the engine and all runs within `SHUTDOWN_SECONDS`."""
        self._closing.set()
        self._wake.set()
        if self._early is not None:
            self._early.close()
        if self._handle is not None:
            self._handle.close()
        if self._thread.ident is not None:
            self._thread.join(SHUTDOWN_SECONDS)

    # ---- supervision -------------------------------------------------------------------------

    def _supervise(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            # The process inherits this: a signal to the whole group (Ctrl+C in a terminal, a
            # service manager) ends the server alone, which then ends the process.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        if self._early is not None and self._fetch is not None:
            self._early.begin(self._log_level)
        ready = self._fetch is None or self._run_fetch(self._fetch)
        while not self._closing.is_set():
            ready = self._switch_to_next() or ready
            if not (ready and self._run_once()):
                self._wake.wait()
            ready = True
        if self._early is not None:
            self._early.close()

    def _switch_to_next(self) -> bool:
        """Switch to the next model; return whether there is one."""
        self._wake.clear()
        with self._switch_lock:
            served, self._next_model = self._next_model, None
        if served is not None:
            self._load, self.tokenizer, self.path = served.load, served.tokenizer, served.path
            self._note = served.note
            self._could_load = False
            self._backoff.reset()
        return served is not None

    def _run_fetch(self, fetch: Fetch) -> bool:
        def tell(transfer: Transfer) -> None:
            self._publish(Status("loading", str(transfer), transfer.share))

        try:
            fetch(tell, self._closing.is_set)
        except Cancelled:
            return False
        except EngineError as error:
            self._publish(Status("failed", str(error)))
            return False
        except Exception as error:
            log.exception("the model could not be fetched")
            self._publish(Status("failed", f"{type(error).__name__}: {error}"))
            return False
        return True

    def _run_once(self) -> bool:
        """Run one process until its end, and pause; False: do not start another."""
        try:
            handle = self._handle = EngineHandle(
                self._load, self._log_level, self._timeouts, self._start_process
            )
        except (OSError, RuntimeError) as error:
            return self._record_crash(f"it could not be started: {error}", 0.0)
        if self._abandoned:
            handle.close()
        failed, ready_at = self._relay_status(handle)
        how = handle.wait_exit()
        ready_seconds = 0.0 if ready_at is None else time.monotonic() - ready_at
        if self._closing.is_set():
            handle.dispose("the server is shutting down")
            return True
        if self._next_model is not None:
            handle.dispose("the model was changed")
            return True
        if failed is None:
            return self._record_crash(how, ready_seconds, handle)
        handle.dispose(failed.message)
        if failed.device and self._could_load:
            return self._record_crash(failed.message, ready_seconds)
        self._publish(Status("failed", failed.message))
        return False

    def _publish(self, status: Status, hello: Hello | None = None) -> None:
        """Set the state, unless another model is to be loaded, for which `switch` has set it."""
        with self._switch_lock:
            if self._next_model is None:
                self._set_state(status, hello)

    @property
    def _abandoned(self) -> bool:
        """True if the server closes or another model is to be loaded."""
        return self._closing.is_set() or self._next_model is not None

    def _relay_status(self, handle: EngineHandle) -> tuple[LoadFailed | None, float | None]:
        """Publish the states of a process until its end. Return why it could not load and when it
        was ready, None if neither happened."""
        failed = ready_at = None
        for message in handle.receive():
            if self._next_model is not None:
                continue
            match message:
                case Loading(progress=progress, message=text):
                    again = bool(self._backoff.n_crashes)
                    self._publish(Status("restarting" if again else "loading", text, progress))
                case Ready(info=info):
                    ready_at = time.monotonic()
                    self._was_ready = self._could_load = True
                    self._publish(Status("ready", "ready"), Hello.of(info, self.chat, self._note))
                case LoadFailed():
                    failed = message
        return failed, ready_at

    def _record_crash(
        self, how: str, ready_seconds: float, handle: EngineHandle | None = None
    ) -> bool:
        """Record a crash, publish it and pause before the next start; False: give up."""
        pause = self._backoff.crashed(ready_seconds)
        crashes = f"the engine stopped {self._backoff.n_crashes} times in a row ({how})"
        give_up = pause > 0 and not self._was_ready
        if give_up:
            self._publish(Status("failed", f"{crashes}; its messages are in the server's log"))
        elif pause:
            self._publish(_retry_status(crashes, pause))
        else:
            self._publish(Status("restarting", f"the engine stopped ({how}) and is restarting"))
        log.error("the engine's process ended unexpectedly (%s)", how)
        if handle is not None:
            handle.dispose("the engine stopped")
        for left in range(0 if give_up else pause, 0, -1):
            self._publish(_retry_status(crashes, left))
            if self._wake.wait(1.0):
                break
        return not give_up


def _retry_status(why: str, seconds: int) -> Status:
    return Status("restarting", f"{why}; trying again in {seconds} s", None, seconds)
