"""LoRA adapters by NAME=PLACE, a place being a folder or OWNER/ADAPTER on the Hugging Face hub."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from app.hub import is_hub_id, look_up
from app.hub_errors import NotOnHub
from gpu import ModelError, check_lora

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MAX_BYTES = 8 << 30
"""Of an adapter that is fetched: far above the largest real one."""

log = logging.getLogger(__name__)


def find_loras(wanted: tuple[str, ...]) -> dict[str, Path]:
    """Folders of adapters by their names; those of the hub are fetched, safetensors alone. What is
    a path of this machine is that, even if the hub has the name too. Raises ModelError for what
    does not say where an adapter is, HubError and NotOnHub."""
    found: dict[str, Path] = {}
    for entry in wanted:
        name, equals, place = entry.partition("=")
        if not (name and equals and place):
            raise ModelError(
                f"--lora {entry!r} should be NAME=FOLDER or NAME=OWNER/ADAPTER of the hub"
            )
        if name in found:
            raise ModelError(f"--lora gives two adapters the name {name!r}; rename one")
        found[name] = _folder(place)
    return found


def usable(model: Path, folders: Mapping[str, Path]) -> dict[str, Path]:
    """Those that the model at `model` can have. Others are told, and left out: a model is served
    without them."""
    found = {}
    for name, folder in folders.items():
        try:
            check_lora(name, folder, model)
            found[name] = folder
        except ModelError as error:
            log.warning("%s; the model is served without this adapter", error)
    return found


def _folder(place: str) -> Path:
    path = Path(place)
    if path.exists():
        return path
    if not is_hub_id(place):
        raise ModelError(f"there is no folder {place!r}; the hub's are named OWNER/ADAPTER")
    snapshot = look_up(place, config=CONFIG)
    has = {file.name for file in snapshot.folder.iterdir()}
    if WEIGHTS not in (has if snapshot.files is None else snapshot.files):
        raise NotOnHub(f"{place} has no {WEIGHTS}; a pickle may run code, so it is not fetched")
    missing = snapshot.missing((WEIGHTS,))
    if sum(file.n_bytes for file in missing) > MAX_BYTES:
        raise NotOnHub(f"{place}: {WEIGHTS} is too large to be an adapter")
    snapshot.fetch(missing)
    return snapshot.folder
