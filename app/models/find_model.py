"""Resolve a model's name: a folder, a GGUF file, or OWNER/MODEL on the Hugging Face hub, where
OWNER/MODEL:Q4_K_M selects one of several GGUF files.

A model is found in three steps, so that one that cannot be run is refused early: first its config
is read and checked, then its tokenizer and the headers of its weights. Only then are its weights
downloaded.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app import tale
from app.config import Settings
from app.engine.client import Tokenizer
from app.models.hub import HubFile, Snapshot, look_up
from app.models.hub_gguf import (
    cached_gguf_files,
    choose_files,
    group_gguf_files,
    is_hub_name,
    split_name,
    write_outlines,
)
from app.models.memory import expect_fit
from app.models.model_source import ModelSource
from app.models.transfer import Transfer
from app.prompt.limited_tokenizer import LimitedTokenizer, load_tokenizer
from gpu import ModelConfig, ModelError, Shapes, gguf_part

OnTransfer = Callable[[Transfer], None]
CheckFit = Callable[..., None]
"""check_fit(display_name, path, shapes=None) raises DeviceError if the model does not fit.
`shapes` is a function that returns the shapes of weights that are not downloaded yet."""


def _report_nothing(transfer: Transfer) -> None: ...


def _not_cancelled() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Model:
    """Model whose config and tokenizer have been read; its weights may still be missing.

    name      name to display
    path      its folder or file; in the hub's cache for a model of the hub
    missing   weight files that `fetch` must download first
    snapshot  its commit on the hub; None for a local model
    """

    name: str
    path: Path
    tokenizer: Tokenizer
    missing: tuple[HubFile, ...] = ()
    snapshot: Snapshot | None = None

    @property
    def source(self) -> ModelSource:
        """Files, name and tokenizer of this model, for its engine. With the tokenizer the engine
        need not read the files again; it is left out for the bundled model, whose files are
        trusted."""
        tokenizer = self.tokenizer if isinstance(self.tokenizer, LimitedTokenizer) else None
        return ModelSource(self.path, self.name, tokenizer)

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
) -> Model:
    """Return the model that the settings name, the bundled one if None.

    For a model of the hub, everything but the weights is downloaded. A path that exists on this
    machine has precedence over a model of the hub with the same name.

    With `must_fit`, the model and the adapters in the folders `loras` must fit in the free memory
    plus `spare_bytes`, which will have been freed by the time the model is loaded.

    Raises ModelError if it is not a model or cannot be run, HubError if the hub is needed and
    cannot be reached, and DeviceError if it does not fit.
    """
    name = settings.model
    on_hub = name is not None and is_hub_name(name) and not Path(name).exists()

    def check_fit(
        display_name: str, path: Path, shapes: Callable[[], Shapes] | None = None
    ) -> None:
        if must_fit:
            expect_fit(
                display_name,
                path,
                settings,
                shapes and shapes(),
                spare_bytes=spare_bytes,
                loras=loras,
            )

    if settings.revision is not None and not on_hub:
        raise ModelError(
            "--revision applies to a model of the hub (OWNER/MODEL), but the model is "
            f"{name or 'the bundled one'}; leave --revision out"
        )
    if name is not None and on_hub:
        return _find_hub_model(name, settings, check_fit)
    path = tale.model_dir() if name is None else Path(name)
    if not path.exists():
        raise ModelError(
            f"there is no folder or file {name!r}; expected a path, or OWNER/MODEL on the hub"
        )
    ModelConfig.from_folder(path)
    resolved = path.resolve()
    display_name = tale.NAME if resolved == tale.model_dir() else _display_name(resolved.name)
    model = Model(display_name, path, load_tokenizer(path))
    check_fit(display_name, path)
    return model


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
        ModelConfig.from_folder(snapshot.folder)
        snapshot.fetch(snapshot.missing_small())
        ModelConfig.from_folder(snapshot.folder)  # now with generation_config.json
        tokenizer = load_tokenizer(snapshot.folder)
        weights = snapshot.weight_names()
        missing = snapshot.missing(weights)
        shapes = functools.partial(snapshot.shapes, weights)
        check_fit(name, snapshot.folder, shapes if missing else None)
    except ModelError as error:
        # Paths in the hub's cache tell a user nothing.
        raise type(error)(_with_model_name(str(error), snapshot.folder, name)) from None
    return Model(name, snapshot.folder, tokenizer, missing, snapshot)


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
            check_fit(name, path)
        except ModelError as error:
            raise type(error)(_with_model_name(str(error), folder, name)) from None
    return Model(name, cached_path, tokenizer, missing, snapshot)
