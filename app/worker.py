"""The engine process, seen from the server: start it, talk to it, start it again when it dies."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec

from app.engines import EngineClient, Load, OnEvent, Served, Tokenizer
from app.life import Life, ProcessRun
from app.pipe import CLOSE_SECONDS, Close, Failed, Loading, Ready
from app.protocol import Status
from app.transfer import Cancelled, Transfer
from gpu import (
    NO_INTERVENTIONS,
    ChangeAt,
    EngineError,
    Interventions,
    ReachedFrom,
    SamplingParams,
)
from gpu.inspection import Answer, Question

log = logging.getLogger(__name__)

MAX_RESTARTS = 3
RESTART_WINDOW_SECONDS = 60.0

Fetch = Callable[[Callable[[Transfer], None], Callable[[], bool]], None]
"""Brings a model's files: is given whom to tell how far it is, and who says that it shall end."""


class ProcessEngine(EngineClient):
    """The engine in a process of its own, restarted when it dies.

    Before the first one, `fetch` brings what the model still lacks; the state says how far it is.
    A model that cannot be fetched or loaded is not tried again. A process that dies is, up to
    `MAX_RESTARTS` times within `RESTART_WINDOW_SECONDS`; then the state is `failed`.
    """

    def __init__(
        self,
        load: Load,
        tokenizer: Tokenizer,
        log_level: str = "info",
        path: Path | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        super().__init__(tokenizer, path)
        self._load = load
        self._fetch = fetch
        self._log_level = log_level
        self._life: Life | None = None
        self._closing = threading.Event()
        self._wake = threading.Event()  # a failed engine has something to do
        self._next: Served | None = None
        self._deaths: deque[float] = deque()
        self._thread = threading.Thread(target=self._supervise, name="engine", daemon=True)

    @property
    def pid(self) -> int | None:
        """Of the engine's process, while there is one."""
        return None if self._life is None else self._life.process.pid

    def start(self) -> None:
        self._thread.start()

    def submit(
        self,
        ids: list[int],
        params: SamplingParams,
        *,
        capture: bool,
        on_event: OnEvent,
        script: tuple[ChangeAt, ...] = (),
        reach: Interventions = NO_INTERVENTIONS,
        reached: tuple[ReachedFrom, ...] = (),
    ) -> ProcessRun:
        self.require_ready()
        life = self._life
        assert life is not None
        return life.submit(ids, params, capture, on_event, script, reach, reached)

    def inspect(self, question: Question) -> Future[Answer]:
        self.require_ready()
        life = self._life
        assert life is not None
        return life.ask(question)

    def switch(self, served: Served) -> None:
        self._next = served
        self._set_state(Status("loading", "ending the model before", 0.0))
        if self._life is not None:
            self._life.send(Close())
        self._wake.set()

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        if self._life is not None:
            self._life.send(Close())
        if self._thread.ident is not None:
            self._thread.join(2 * CLOSE_SECONDS)

    # ---- supervision -------------------------------------------------------------------------

    def _supervise(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            # Inherited by the process: what tells the whole group to end (Ctrl+C in a terminal, a
            # service manager) reaches the server alone, even before the process handles it.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        ready = self._fetch is None or self._fetched(self._fetch)
        while not self._closing.is_set():
            failure = self._live_once() if ready else None
            if failure is not None:
                self._set_state(Status("failed", failure))
            if failure is not None or not ready:
                self._wake.wait()
            ready = True
            self._take_next()

    def _take_next(self) -> None:
        """Serve another model from now on, if there is one."""
        self._wake.clear()
        served, self._next = self._next, None
        if served is not None:
            self._load, self.tokenizer, self.path = served.load, served.tokenizer, served.path
            self._deaths.clear()

    def _fetched(self, fetch: Fetch) -> bool:
        def tell(transfer: Transfer) -> None:
            self._set_state(Status("loading", str(transfer), transfer.share))

        try:
            fetch(tell, self._closing.is_set)
        except Cancelled:
            return False
        except EngineError as error:
            self._set_state(Status("failed", str(error)))
            return False
        except Exception as error:
            log.exception("the model could not be fetched")
            self._set_state(Status("failed", f"{type(error).__name__}: {error}"))
            return False
        return True

    def _live_once(self) -> str | None:
        """One process until its end; the reason when there shall be no other."""
        life = self._life = Life(self._load, self._log_level)
        if self._closing.is_set() or self._next is not None:
            life.send(Close())
        failure = None
        for message in life.receive():
            if self._next is not None:
                continue  # nobody waits for this model any more
            match message:
                case Loading(progress=progress, message=text):
                    again = bool(self._deaths)
                    self._set_state(Status("restarting" if again else "loading", text, progress))
                case Ready(hello=hello):
                    model = msgspec.structs.replace(hello.model, chat=self.chat)
                    self._set_state(
                        Status("ready", "ready"), msgspec.structs.replace(hello, model=model)
                    )
                case Failed(message=text):
                    failure = text
        if self._closing.is_set():
            life.end("the server is shutting down")
            return None
        if self._next is not None:
            life.end("the model was changed; the text so far is kept")
            return None
        if failure is None:
            failure = self._mourn(life)
        life.end(failure or "the engine stopped; the text so far is kept")
        return failure

    def _mourn(self, life: Life) -> str | None:
        """Note a death; the reason when there were too many."""
        life.process.join(CLOSE_SECONDS)
        how = ending(life.process.exitcode)
        log.error("the engine's process ended unexpectedly (%s)", how)
        now = time.monotonic()
        self._deaths.append(now)
        recent = sum(now - death <= RESTART_WINDOW_SECONDS for death in self._deaths)
        if recent > MAX_RESTARTS:
            return (
                f"its process ended {recent} times within {RESTART_WINDOW_SECONDS:g} s, "
                f"the last time by {how}; its messages are in the server's log"
            )
        self._set_state(Status("restarting", f"the engine stopped ({how}) and is restarting"))
        return None


def ending(exit_code: int | None) -> str:
    """How a process ended, for people."""
    if exit_code is None:
        return "closing its pipe"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"
