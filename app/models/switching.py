"""Changing the model of a running server: judged, fetched and checked while the old one is served,
then the old one is freed, then the new one is loaded.

What is seen before loading (no such model, an architecture the engine lacks, no room, weights that
are damaged) leaves the old model as it is. Beside what the server was started with, only names of
the hub can be taken: a page cannot make the server read a folder.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace as replace_struct

from app import tale
from app.cached_models import cached_models
from app.config import Dtype, Settings
from app.engines import EngineClient, Load, Served
from app.hub_gguf import is_hub_name
from app.known_models import KnownModel, known_models
from app.limited_tokenizer import LimitedTokenizer
from app.models import Model, find_model
from app.transfer import Cancelled, Transfer
from gpu import EngineError, InvalidRequest, expect_loadable

log = logging.getLogger(__name__)

UNDER_WAY = ("judging", "fetching", "checking", "loading")


class CachedModel(msgspec.Struct, frozen=True):
    """A model in the hub's cache on this machine. `n_bytes` on the disk."""

    name: str
    n_bytes: int


class ModelChange(msgspec.Struct, frozen=True):
    """The newest change of the model. `progress` is in [0, 1] while fetching and checking."""

    name: str
    state: Literal["judging", "fetching", "checking", "loading", "done", "failed", "cancelled"]
    message: str = ""
    progress: float | None = None


class Offers(msgspec.Struct, frozen=True):
    """What can be taken: by `started_with` name or folder, `bundled`, known and cached ones, and
    any other of the hub by its name. `current` is None while none is ready."""

    current: str | None
    started_with: str
    bundled: str
    known: tuple[KnownModel, ...]
    cached: tuple[CachedModel, ...]
    change: ModelChange | None


class Switching:
    """Offers models and changes to them, one at a time. `make_load`: how an engine is loaded with
    these settings; `loras`: folders of the adapters that it is loaded with."""

    def __init__(
        self,
        engine: EngineClient,
        settings: Settings,
        make_load: Callable[[Settings, Model], Load],
        loras: Mapping[str, Path] | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._make_load = make_load
        self._loras = loras
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._change: ModelChange | None = None

    def offers(self) -> Offers:
        hello = self._engine.hello
        return Offers(
            current=None if hello is None else hello.model.name,
            started_with=self._settings.model or tale.NAME,
            bundled=tale.NAME,
            known=known_models(),
            cached=tuple(CachedModel(*found) for found in cached_models()),
            change=self._newest(),
        )

    def _newest(self) -> ModelChange | None:
        """The newest change, and what became of it once it was the engine's turn."""
        change, status = self._change, self._engine.status
        if change is None or change.state != "loading":
            return change
        if status.state == "ready":
            return replace_struct(change, state="done")
        state: Literal["loading", "failed"] = "failed" if status.state == "failed" else "loading"
        return replace_struct(change, state=state, message=status.message, progress=status.progress)

    def begin(self, name: str, dtype: Dtype | None = None) -> ModelChange:
        """Judge the model `name` and begin to change to it. Raises InvalidRequest for a name that
        is not one of the hub, a change that is under way and a model that cannot be run here, and
        HubError when the hub cannot be asked; the old model is served on then."""
        settings = self._settings_for(name, dtype)
        with self._lock:
            now = self._newest()
            if now is not None and now.state in UNDER_WAY:
                raise InvalidRequest(
                    f"the model is being changed to {now.name} ({now.state}); wait for that, or "
                    "cancel the download",
                    "name",
                )
            self._change = ModelChange(name, "judging")
            self._cancelled.clear()
        try:
            model = find_model(settings, spare_bytes=self._held_bytes(), loras=self._loras)
        except EngineError as error:
            self._change = ModelChange(name, "failed", str(error))
            raise
        except BaseException:
            self._change = ModelChange(name, "failed", "the server made a mistake; see its log")
            raise
        self._change = ModelChange(name, "fetching", "", 0.0)
        threading.Thread(
            target=self._fetch_and_switch, args=(settings, name, model), name="switch", daemon=True
        ).start()
        return self._change

    def cancel(self) -> None:
        """End a download that is under way; what was fetched whole is kept."""
        self._cancelled.set()

    def _settings_for(self, name: str, dtype: Dtype | None) -> Settings:
        started_with = self._settings.model
        of_hub = is_hub_name(name) and not Path(name).exists()
        if not of_hub and name not in (tale.NAME, started_with):
            raise InvalidRequest(
                f"{name!r} is not OWNER/MODEL of the hub; to run a folder, start the server with "
                "it: tokenglass run FOLDER",
                "name",
            )
        again = name == (started_with or tale.NAME)
        return replace(
            self._settings,
            model=None if name == tale.NAME and started_with != tale.NAME else name,
            revision=self._settings.revision if again else None,
            dtype=dtype or self._settings.dtype,
        )

    def _held_bytes(self) -> int:
        """What the old model gives back before the new one is loaded."""
        hello = self._engine.hello
        if hello is None:
            return 0
        return hello.memory.weights + hello.memory.kv_cache + hello.memory.work

    def _fetch_and_switch(self, settings: Settings, name: str, model: Model) -> None:
        def tell(transfer: Transfer) -> None:
            self._change = ModelChange(name, "fetching", str(transfer), transfer.share)

        def check(share: float, message: str) -> None:
            self._change = ModelChange(name, "checking", message, share)
            if self._cancelled.is_set():
                raise Cancelled

        try:
            model.fetch(tell, self._cancelled.is_set)
            if self._cancelled.is_set():
                raise Cancelled
            expect_loadable(model.path, settings.dtype, check)  # the old model is still there
            if self._cancelled.is_set():
                raise Cancelled
            served = Served(self._make_load(settings, model), model.tokenizer, model.path)
            before = self._engine.tokenizer
            self._engine.switch(served)
            if isinstance(before, LimitedTokenizer):
                before.close()
            self._change = ModelChange(name, "loading")
        except Cancelled:
            self._change = ModelChange(name, "cancelled", "the model before goes on being served")
        except EngineError as error:
            self._change = ModelChange(name, "failed", str(error))
        except Exception:
            log.exception("the model could not be changed")
            self._change = ModelChange(name, "failed", "the server made a mistake; see its log")


def with_engine(
    load: Callable[..., Any],
) -> Callable[[Settings, Model], Load]:
    """`make_load` of `app.server.load_engine`, which goes to another process."""

    def make_load(settings: Settings, model: Model) -> Load:
        return functools.partial(
            load, settings, model.path, name=model.name, tokenizer=model.engine_tokenizer
        )

    return make_load
