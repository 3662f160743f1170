"""Client of the engine in the server: its state, hello, tokenizer and runs.

`EngineClient` is what the routes use. `LocalEngine` runs the engine in this process (tests, the
development server); `app.engine.supervisor.SupervisedEngine` runs it in a process of its own (the
product)."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from app.protocol.messages import Hello, Status
from gpu import (
    EngineClosed,
    EngineError,
    EngineInfo,
    EngineStats,
    InvalidRequest,
    Request,
    Segmentation,
    TextChunk,
    TextEncoding,
)
from gpu.events import Done, Event
from gpu.inspection.requests import Answer, Question

log = logging.getLogger(__name__)

OnEvent = Callable[[Event], None]
OnState = Callable[[Status, Hello | None], None]
Progress = Callable[[float, str], None]


ASKER_IDS = itertools.count(1)
"""Numbers of the pages and requests that ask questions (`EngineClient.inspect`)."""


class UnavailableError(EngineError):
    """The engine is loading, restarting or has failed; the message says which."""

    code = "unavailable"


class LostRun(Done, frozen=True, tag="done"):
    """End of a run whose engine is gone; another engine could go on with it."""


class Tokenizer(Protocol):
    """The part of `gpu.Tokenizer` that the server uses."""

    special_tokens: dict[str, str]
    eos_ids: tuple[int, ...]
    chat_template: str | None
    tool_template: str | None

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, bos: bool = True, specials: bool = True) -> list[int]: ...
    def encode_with_offsets(
        self, text: str, bos: bool = True, specials: bool = True, inside: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]: ...
    def encode_batch(
        self, chunks: Sequence[TextChunk], offsets: bool = False
    ) -> list[TextEncoding]: ...
    def segment(self, text: str) -> Segmentation: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def piece(self, id: int) -> str: ...
    def token_bytes(self, id: int) -> bytes: ...
    def is_special(self, id: int) -> bool: ...

    @property
    def n_stripped_spaces(self) -> int: ...


class Run(Protocol):
    """A run of the engine. `update` returns the index of the first token it applies to, when it
    does: what it needs may have to be computed."""

    def update(self, **changes: Any) -> int: ...
    def cancel(self) -> None: ...


class EngineRun(Run, Protocol):
    """The part of `gpu.Run` that the engine's process uses: an `update` that does not wait."""

    def start_update(self, **changes: Any) -> Future[int]: ...


class Engine(Protocol):
    """The part of `gpu.Engine` that the server uses."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def busy_since(self) -> float | None: ...

    @property
    def stats(self) -> EngineStats: ...

    def submit(self, request: Request, on_event: OnEvent) -> EngineRun: ...
    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]: ...
    def cancel_questions(self, asker: int) -> None: ...
    def close(self) -> None: ...


Load = Callable[[Progress], Engine]


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One of the engines that serve the model. `state`: as in `Status`, or "away" while the load
    does not need it. `stats`: None before it is ready."""

    state: str
    stats: EngineStats | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model to serve: how its engine is loaded, and what is read of it here. `note`: what the
    page should say about it."""

    load: Load
    tokenizer: Tokenizer
    path: Path | None
    note: str = ""


class EngineClient(ABC):
    """State and listeners are here; subclasses bring the engine.

    Listeners are called on the thread that changed the state and must not block.
    """

    def __init__(self, tokenizer: Tokenizer, path: Path | None = None) -> None:
        self.tokenizer = tokenizer
        self.path = path
        """Path of the model; None if it has no files."""
        self._state_lock = threading.Lock()
        self._status = Status("loading", "starting the engine", 0.0)
        self._hello: Hello | None = None
        self._listeners: list[OnState] = []

    @property
    def status(self) -> Status:
        return self._status

    @property
    def hello(self) -> Hello | None:
        """Set while the engine is ready."""
        return self._hello

    @property
    @abstractmethod
    def stats(self) -> EngineStats | None:
        """Figures of the engine, at most a second old; None while there is no engine."""

    def replica_status(self) -> ReplicaStatus:
        """Return the state of this engine as one of several."""
        return ReplicaStatus(self.status.state, self.stats)

    def replica_statuses(self) -> Sequence[ReplicaStatus]:
        """Return the state of each engine that serves the model: of this one."""
        return (self.replica_status(),)

    def replica(self, number: int) -> EngineClient:
        """Return the engine with this number, from 1, among those that serve the model. Raises
        InvalidRequest if there is none."""
        return one_of((self,), number)

    @property
    def chat(self) -> bool:
        """True if the model has a chat template."""
        return self.tokenizer.chat_template is not None

    def listen(self, listener: OnState) -> Callable[[], None]:
        """Call `listener` with the state now and at every change; returns how to end that."""
        with self._state_lock:
            self._listeners.append(listener)
            listener(self._status, self._hello)

        def unlisten() -> None:
            with self._state_lock:
                self._listeners.remove(listener)

        return unlisten

    def require_path(self) -> Path:
        """Return the path of the model. Raises `UnavailableError` if it has no files here."""
        if self.path is None:
            raise UnavailableError("the files of this model are not on this server")
        return self.path

    def require_ready(self) -> Hello:
        """Return the hello. Raises `UnavailableError` unless the engine is ready."""
        hello, status = self._hello, self._status
        if hello is None:
            raise UnavailableError(describe_unavailable(status))
        return hello

    def expect_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise UnavailableError if the model is another than when `tokenizer` was its own: the ids
        of one model mean other words to another."""
        if self.tokenizer is not tokenizer:
            raise UnavailableError("the model was changed meanwhile; send the request again")

    def _set_state(self, status: Status, hello: Hello | None = None) -> None:
        with self._state_lock:
            self._status = status
            self._hello = hello
            for listener in self._listeners:
                try:
                    listener(status, hello)
                except Exception:  # the thread and the other listeners must go on
                    log.exception("a listener failed at the state %s", status.state)

    @abstractmethod
    def start(self) -> None:
        """Begin to load; returns at once."""

    @abstractmethod
    def submit(self, request: Request, on_event: OnEvent) -> Run:
        """Start a run. Raises what `gpu.Engine.submit` raises, and `UnavailableError`."""

    @abstractmethod
    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        """Ask about a run. Questions of different askers take turns. Refusals are raised, or come
        through the future, whose callbacks run on a thread that must not be blocked. Do not cancel
        it: the engine would trip over that."""

    @abstractmethod
    def cancel_questions(self, asker: int) -> None:
        """Cancel the questions of an asker; their futures raise."""

    def switch(self, served: ServedModel) -> None:
        """End the model with all its runs, then load another; returns at once. Raises
        `UnavailableError` where that is not possible."""
        raise UnavailableError("the model of this server cannot be changed; start another server")

    def reload(self) -> None:
        """End the model with all its runs, then load it again, as with other adapters; returns at
        once. Raises `UnavailableError` where that is not possible."""
        raise UnavailableError("the model of this server cannot be changed; start another server")

    @abstractmethod
    def close(self) -> None:
        """End the engine and all runs."""


class LocalEngine(EngineClient):
    """The engine in this process, loaded by a thread."""

    def __init__(self, load: Load, tokenizer: Tokenizer, path: Path | None = None) -> None:
        super().__init__(tokenizer, path)
        self._load = load
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._run_load, name="load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run_load(self) -> None:
        try:
            engine = self._load(lambda done, text: self._set_state(Status("loading", text, done)))
        except EngineError as error:
            self._set_state(Status("failed", str(error)))
            return
        self._engine = engine
        self._set_state(Status("ready", "ready"), Hello.of(engine.info, self.chat))

    @property
    def stats(self) -> EngineStats | None:
        return None if self._engine is None else self._engine.stats

    def submit(self, request: Request, on_event: OnEvent) -> Run:
        self.require_ready()
        assert self._engine is not None
        return self._engine.submit(request, on_event)

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        self.require_ready()
        assert self._engine is not None
        return self._engine.inspect(question, asker)

    def cancel_questions(self, asker: int) -> None:
        if self._engine is not None:
            with contextlib.suppress(EngineClosed):
                self._engine.cancel_questions(asker)

    def close(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()
        if self._engine is not None:
            self._engine.close()


def one_of(replicas: Sequence[EngineClient], number: int) -> EngineClient:
    """Return the replica with this number, from 1. Raises InvalidRequest."""
    if not 1 <= number <= len(replicas):
        last = len(replicas)
        has = f"engines 1 to {last}" if last > 1 else "engine 1 only"
        raise InvalidRequest(f"there is no engine {number}: the model has {has}", "engine")
    return replicas[number - 1]


def describe_unavailable(status: Status) -> str:
    """Return why there is no engine, and what to do."""
    match status.state:
        case "loading":
            if status.retry_seconds is not None:  # an upstream that was never reached
                return status.message
            percent = "" if status.progress is None else f" ({status.progress:.0%})"
            return f"the model is still loading{percent}; try again in a moment"
        case "restarting":
            if status.retry_seconds is not None:
                return f"the engine is restarting: {status.message}"
            return "the engine is restarting; try again in a moment"
        case "failed":
            return (
                f"the engine has failed: {status.message}; choose another model, or start the "
                "server again"
            )
    return "the engine is not ready; try again in a moment"
