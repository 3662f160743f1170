"""The engine process, seen from the server: start it, talk to it, start it again when it dies."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec

from app.backoff import Backoff, Restarts
from app.engines import EngineClient, Load, OnEvent, Served, Tokenizer
from app.heartbeat import Patience
from app.life import Life, ProcessRun
from app.pipe import Failed, Loading, Ready
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

CLOSING_SECONDS = 9.0
"""A server that is told to end does, within this time."""

Fetch = Callable[[Callable[[Transfer], None], Callable[[], bool]], None]
"""Brings a model's files: is given whom to tell how far it is, and who says that it shall end."""


class ProcessEngine(EngineClient):
    """The engine in a process of its own, started again when it dies, hangs or is frozen.

    Before the first one, `fetch` brings what the model still lacks; the state says how far it is.
    A model that cannot be fetched or loaded is not tried again, and the state is `failed`. So it is
    when the first process of this server dies while loading, more often than `restarts` allow at
    once. Any other that dies is started again, after longer and longer pauses.
    """

    def __init__(
        self,
        load: Load,
        tokenizer: Tokenizer,
        log_level: str = "info",
        path: Path | None = None,
        fetch: Fetch | None = None,
        *,
        patience: Patience | None = None,
        restarts: Restarts | None = None,
    ) -> None:
        super().__init__(tokenizer, path)
        self._load = load
        self._fetch = fetch
        self._log_level = log_level
        self._patience = patience or Patience()
        self._backoff = Backoff(restarts or Restarts())
        self._life: Life | None = None
        self._closing = threading.Event()
        self._wake = threading.Event()  # to be closed, or to serve another model
        self._next: Served | None = None
        self._was_ready = False
        self._could_load = False  # the model that is served
        self._thread = threading.Thread(target=self._supervise, name="engine", daemon=True)

    @property
    def pid(self) -> int | None:
        """Of the engine's process, while there is one."""
        return None if self._life is None else self._life.pid

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

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        self.require_ready()
        life = self._life
        assert life is not None
        return life.ask(question, asker)

    def forget(self, asker: int) -> None:
        if self._life is not None:
            self._life.forget(asker)

    def switch(self, served: Served) -> None:
        self._next = served
        self._set_state(Status("loading", "ending the model before", 0.0))
        if self._life is not None:
            self._life.close()
        self._wake.set()

    def close(self) -> None:
        """End the engine and all runs, within `CLOSING_SECONDS`, whatever they do."""
        self._closing.set()
        self._wake.set()
        if self._life is not None:
            self._life.close()
        if self._thread.ident is not None:
            self._thread.join(CLOSING_SECONDS)

    # ---- supervision -------------------------------------------------------------------------

    def _supervise(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            # Inherited by the process: what tells the whole group to end (Ctrl+C in a terminal, a
            # service manager) reaches the server alone, even before the process handles it.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        ready = self._fetch is None or self._fetched(self._fetch)
        while not self._closing.is_set():
            if not (ready and self._live_once()):
                self._wake.wait()
            ready = True
            self._take_next()

    def _take_next(self) -> None:
        """Serve another model from now on, if there is one."""
        self._wake.clear()
        served, self._next = self._next, None
        if served is not None:
            self._load, self.tokenizer, self.path = served.load, served.tokenizer, served.path
            self._could_load = False
            self._backoff.reset()

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

    def _live_once(self) -> bool:
        """One process until its end, and the pause after it; False: there shall be no other."""
        try:
            life = self._life = Life(self._load, self._log_level, self._patience)
        except (OSError, RuntimeError) as error:
            return self._mourn(f"it could not be started: {error}", 0.0)
        if self._called_off:
            life.close()
        failed, ready_at = self._follow(life)
        how = life.reap()
        lived = 0.0 if ready_at is None else time.monotonic() - ready_at
        if self._closing.is_set():
            life.end("the server is shutting down")
            return True
        if self._next is not None:
            life.end("the model was changed; the text so far is kept")
            return True
        if failed is None:
            return self._mourn(how, lived, life)
        life.end(failed.message)
        if failed.device and self._could_load:
            return self._mourn(failed.message, lived)
        self._set_state(Status("failed", failed.message))
        return False

    @property
    def _called_off(self) -> bool:
        """Does nobody wait for this process any more?"""
        return self._closing.is_set() or self._next is not None

    def _follow(self, life: Life) -> tuple[Failed | None, float | None]:
        """Tell what a process says until its end: why it could not load, and when it was ready."""
        failed = ready_at = None
        for message in life.receive():
            if self._next is not None:
                continue
            match message:
                case Loading(progress=progress, message=text):
                    again = bool(self._backoff.n_deaths)
                    self._set_state(Status("restarting" if again else "loading", text, progress))
                case Ready(hello=hello):
                    ready_at = time.monotonic()
                    self._was_ready = self._could_load = True
                    model = msgspec.structs.replace(hello.model, chat=self.chat)
                    self._set_state(
                        Status("ready", "ready"), msgspec.structs.replace(hello, model=model)
                    )
                case Failed():
                    failed = message
        return failed, ready_at

    def _mourn(self, how: str, ready_seconds: float, life: Life | None = None) -> bool:
        """Note a death, tell it, and wait as long as there have been many; False: give up."""
        pause = self._backoff.died(ready_seconds)
        often = f"the engine stopped {self._backoff.n_deaths} times in a row ({how})"
        give_up = pause > 0 and not self._was_ready
        if give_up:
            self._set_state(Status("failed", f"{often}; its messages are in the server's log"))
        elif pause:
            self._set_state(_waiting(often, pause))
        else:
            self._set_state(Status("restarting", f"the engine stopped ({how}) and is restarting"))
        log.error("the engine's process ended unexpectedly (%s)", how)
        if life is not None:
            life.end("the engine stopped; the text so far is kept")
        for left in range(0 if give_up else pause, 0, -1):
            self._set_state(_waiting(often, left))
            if self._wake.wait(1.0):
                break
        return not give_up


def _waiting(why: str, seconds: int) -> Status:
    return Status("restarting", f"{why}; trying again in {seconds} s", None, seconds)
