"""Find LoRA adapters given as NAME=FOLDER or NAME=OWNER/ADAPTER on the Hugging Face hub."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from app.models.hub import is_hub_id, look_up
from app.models.hub_digests import expect_whole
from app.models.hub_errors import NotOnHub
from gpu import ModelError, check_lora

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MAX_BYTES = 8 << 30
"""Limit on the size of a downloaded adapter; far above the largest real one."""

log = logging.getLogger(__name__)


def find_loras(entries: tuple[str, ...]) -> dict[str, Path]:
    """Return the folders of adapters by name; those of the hub are downloaded (safetensors only).

    A path that exists on this machine has precedence over an adapter of the hub with the same name.
    Raises ModelError for an invalid entry, HubError and NotOnHub.
    """
    folders: dict[str, Path] = {}
    for entry in entries:
        name, equals, location = entry.partition("=")
        if not (name and equals and location):
            raise ModelError(
                f"--lora must be NAME=FOLDER or NAME=OWNER/ADAPTER on the hub, but got {entry!r}"
            )
        if name in folders:
            raise ModelError(f"--lora gives two adapters the name {name!r}; rename one")
        folders[name] = _folder(location)
    return folders


def compatible_loras(model: Path, folders: Mapping[str, Path]) -> dict[str, Path]:
    """Return the adapters that fit the model at `model`; log a warning for each of the others."""
    compatible = {}
    for name, folder in folders.items():
        try:
            check_lora(name, folder, model)
            compatible[name] = folder
        except ModelError as error:
            log.warning("%s; the model is served without this adapter", error)
    return compatible


def _folder(location: str) -> Path:
    path = Path(location)
    if path.exists():
        return path
    if not is_hub_id(location):
        raise ModelError(
            f"there is no folder {location!r}; expected a folder, or OWNER/ADAPTER on the hub"
        )
    snapshot = look_up(location, config=CONFIG)
    cached = {file.name for file in snapshot.folder.iterdir()}
    if WEIGHTS not in (cached if snapshot.files is None else snapshot.files):
        raise NotOnHub(
            f"{location} has no {WEIGHTS}; pickles can run code and are never read, so use an "
            "adapter that is saved as safetensors"
        )
    missing = snapshot.missing((WEIGHTS,))
    if sum(file.n_bytes for file in missing) > MAX_BYTES:
        raise NotOnHub(
            f"{location}: {WEIGHTS} is larger than {MAX_BYTES >> 30} GiB, the limit here"
        )
    snapshot.fetch(missing)
    expect_whole(snapshot.folder / name for name in (CONFIG, WEIGHTS))
    return snapshot.folder
