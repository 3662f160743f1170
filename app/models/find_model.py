"""What a model's name means: a folder, a GGUF file, or OWNER/MODEL on the Hugging Face hub; which
of its GGUF files is meant says OWNER/MODEL:Q4_K_M.

A model is found in three steps, so that what cannot be run is refused early: its config is read
and judged, then its tokenizer and the headers of its weights, and only then are weights fetched.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app import tale
from app.config import Settings
from app.engines import Tokenizer
from app.hub import HubFile, Snapshot, look_up
from app.hub_gguf import cached, choices, chosen, is_hub_name, name_parts, write_outlines
from app.limited_tokenizer import LimitedTokenizer, load_tokenizer
from app.memory import expect_fit
from app.transfer import Transfer
from gpu import ModelConfig, ModelError, Shapes, gguf_part

OnTransfer = Callable[[Transfer], None]
Judge = Callable[..., None]
"""Of what a model is called, its path, and what gives the shapes of weights that are not here yet:
raises DeviceError where the memory cannot hold it."""


def _unheard(transfer: Transfer) -> None: ...


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Model:
    """A model whose config and tokenizer are here and can be used.

    name     what to call it
    path     its folder or file; a folder of the hub's cache for one of the hub
    missing  its weight files that `fetch` must bring first
    """

    name: str
    path: Path
    tokenizer: Tokenizer
    missing: tuple[HubFile, ...] = ()
    snapshot: Snapshot | None = None

    @property
    def engine_tokenizer(self) -> LimitedTokenizer | None:
        """Tokenizer to give to the engine, so that it does not read the files again; None for the
        bundled model, whose files are trusted."""
        return self.tokenizer if isinstance(self.tokenizer, LimitedTokenizer) else None

    def fetch(
        self, on_transfer: OnTransfer = _unheard, cancelled: Callable[[], bool] = _never
    ) -> None:
        """Bring the weights that are missing. Raises HubError, NotOnHub, Cancelled."""
        if self.snapshot is not None and self.missing:
            self.snapshot.fetch(self.missing, on_transfer, cancelled)


def find_model(
    settings: Settings,
    *,
    must_fit: bool = True,
    spare_bytes: int = 0,
    loras: Mapping[str, Path] | None = None,
) -> Model:
    """The model that the settings name, the bundled one if none; of one of the hub, all but the
    weights is fetched. What is a path of this machine is that, even if the hub has the name too.

    Raises ModelError for what is no model or cannot be run, HubError when the hub is needed and
    cannot be had, and, with `must_fit`, DeviceError when the memory there is, with the
    `spare_bytes` that will be free by then, cannot hold it and the adapters in the folders `loras`.
    """
    name = settings.model
    of_hub = name is not None and is_hub_name(name) and not Path(name).exists()

    def judge(called: str, path: Path, shapes: Callable[[], Shapes] | None = None) -> None:
        if must_fit:
            there = shapes and shapes()
            expect_fit(called, path, settings, there, spare_bytes=spare_bytes, loras=loras)

    if settings.revision is not None and not of_hub:
        raise ModelError(
            "--revision is for OWNER/MODEL of the hub, but the model is "
            f"{name or 'the bundled one'}: leave it out"
        )
    if name is not None and of_hub:
        return _of_hub(name, settings, judge)
    path = tale.model_dir() if name is None else Path(name)
    if not path.exists():
        raise ModelError(f"there is no folder or file {name!r}; the hub's are named OWNER/MODEL")
    ModelConfig.from_folder(path)
    resolved = path.resolve()
    called = tale.NAME if resolved == tale.model_dir() else _called(resolved.name)
    model = Model(called, path, load_tokenizer(path))
    judge(called, path)
    return model


def _called(file_name: str) -> str:
    part = gguf_part(file_name)
    return part.name if part else file_name.removesuffix(".gguf")


def _of_hub(name: str, settings: Settings, judge: Judge) -> Model:
    repository, wanted = name_parts(name)
    snapshot = look_up(repository, settings.revision)
    files = snapshot.files if snapshot.files is not None else cached(snapshot.folder)
    found = choices(files.values())
    if wanted is not None or (found and not snapshot.has_safetensors()):
        return _gguf_of_hub(name, snapshot, chosen(repository, found, wanted), judge)
    try:
        ModelConfig.from_folder(snapshot.folder)
        snapshot.fetch(snapshot.missing_small())
        ModelConfig.from_folder(snapshot.folder)  # with what generation_config.json adds
        tokenizer = load_tokenizer(snapshot.folder)
        weights = snapshot.weight_names()
        missing = snapshot.missing(weights)
        shapes = functools.partial(snapshot.shapes, weights)
        judge(name, snapshot.folder, shapes if missing else None)
    except ModelError as error:
        # The cache's folders say nothing to a person.
        raise type(error)(_called_so(str(error), snapshot.folder, name)) from None
    return Model(name, snapshot.folder, tokenizer, missing, snapshot)


def _called_so(message: str, folder: Path, name: str) -> str:
    return message.replace(f"{folder}/", f"{name}: ").replace(str(folder), name)


def _gguf_of_hub(name: str, snapshot: Snapshot, files: tuple[HubFile, ...], judge: Judge) -> Model:
    """Judged by the outline of its files, if they are not here yet."""
    missing = snapshot.missing(tuple(file.name for file in files))
    here = snapshot.folder / files[0].name
    with tempfile.TemporaryDirectory(prefix="tokenglass-") as outlines:
        folder = Path(outlines) if missing else here.parent
        try:
            path = write_outlines(snapshot, files, folder) if missing else here
            ModelConfig.from_folder(path)
            tokenizer = load_tokenizer(path, later=here)
            judge(name, path)
        except ModelError as error:
            raise type(error)(_called_so(str(error), folder, name)) from None
    return Model(name, here, tokenizer, missing, snapshot)
