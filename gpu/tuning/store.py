"""Stored measurements: a small JSON file per adapter in the user's cache folder.

The folder is TOKENGLASS_CACHE, else `tokenglass` in XDG_CACHE_HOME or ~/.cache. A file is used only
if its key matches and its tuning is one that autotuning can choose; others are ignored with a log
message.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from gpu.files.cache_folder import cache_folder
from gpu.files.replace_file import replace_file
from gpu.webgpu.tiling import Tuning

MAX_BYTES = 16_384
"""Largest file that is read, far above what is written."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MeasurementKey:
    """Conditions of a measurement. `kernels`: digest of the candidates and shader sources, and the
    version of the procedure."""

    adapter: str
    driver: str
    backend: str
    wgpu: str
    kernels: str

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256(msgspec.json.encode(asdict(self))).hexdigest()
        return f"tuning-{digest[:16]}.json"


class MeasurementFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a file."""

    key: MeasurementKey
    tuning: Tuning


def writable() -> bool:
    """Return whether files can be written to the folder; create it if it is missing."""
    where = cache_folder()
    try:
        if where is None:
            return False
        where.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(where, os.W_OK | os.X_OK)


def read(key: MeasurementKey, is_allowed: Callable[[Tuning], bool]) -> Tuning | None:
    """Return the tuning stored for `key` if it `is_allowed`, else None."""
    where = cache_folder()
    if where is None:
        return None
    path = where / key.file_name
    try:
        if not path.exists():
            return None
        entry = _parse(path)
        if entry.key != key or not is_allowed(entry.tuning):
            raise ValueError("its key is another adapter's, or autotuning cannot choose its tuning")
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s is ignored: %s", path, error)
        return None
    return entry.tuning


def write(key: MeasurementKey, tuning: Tuning) -> bool:
    """Store a tuning for `key`. Returns False, and logs why, if the folder cannot be
    written."""
    where = cache_folder()
    try:
        if where is None:
            raise OSError("this user has no home folder")
        where.mkdir(parents=True, exist_ok=True)
        entry = MeasurementFile(key, tuning)
        replace_file(where / key.file_name, msgspec.json.encode(entry))
    except OSError as error:
        log.warning("measurements cannot be stored in %s: %s", where, error)
        return False
    return True


def forget(key: MeasurementKey) -> None:
    """Delete the tuning stored for `key`, if there is one and the folder can be written."""
    if where := cache_folder():
        with suppress(OSError):
            (where / key.file_name).unlink()


def _parse(path: Path) -> MeasurementFile:
    if not path.is_file():  # opening a pipe would wait for its writer
        raise ValueError("it is not a file")
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    return msgspec.json.decode(data, type=MeasurementFile, strict=True)
