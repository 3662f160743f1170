"""The tunings that were measured here, kept from start to start: a small JSON file for each adapter
in the user's cache folder.

TOKENGLASS_CACHE names the folder, otherwise it is `tokenglass` in XDG_CACHE_HOME or in ~/.cache.
A file is taken only if it says exactly for what it was written and holds a tuning that the probe
could have chosen; whatever else lies there is ignored, with a line in the log.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from gpu.cache_folder import cache_folder
from gpu.webgpu.tiling import Tuning

MAX_BYTES = 16_384
"""Far above what is written; keeps a stray file from filling the memory."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """What a measurement holds for. `kernels`: a digest of what was measured, sources and all."""

    adapter: str
    driver: str
    backend: str
    wgpu: str
    kernels: str

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256(msgspec.json.encode(asdict(self))).hexdigest()
        return f"tuning-{digest[:16]}.json"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a file."""

    key: Key
    tuning: Tuning


def writable() -> bool:
    """Can the folder take files? It is made if it is missing."""
    where = cache_folder()
    try:
        if where is None:
            return False
        where.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(where, os.W_OK | os.X_OK)


def read(key: Key, allowed: Collection[Tuning]) -> Tuning | None:
    """The tuning kept for `key`, if it cuts products like one of `allowed`."""
    where = cache_folder()
    if where is None:
        return None
    path = where / key.file_name
    try:
        if not path.exists():
            return None
        entry = _parse(path)
        if entry.key != key or replace(entry.tuning, bytes=False) not in allowed:
            raise ValueError("it is not for this adapter or not a tuning that is ever chosen")
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s is ignored: %s", path, error)
        return None
    return entry.tuning


def write(key: Key, tuning: Tuning) -> bool:
    """Keep `tuning` for `key`. False, with a line in the log, when the folder cannot take it."""
    where = cache_folder()
    try:
        if where is None:
            raise OSError("this user has no home folder")
        where.mkdir(parents=True, exist_ok=True)
        _replace(where / key.file_name, msgspec.json.encode(Entry(key, tuning)))
    except OSError as error:
        log.warning("measured tunings cannot be kept in %s: %s", where, error)
        return False
    return True


def _parse(path: Path) -> Entry:
    if not path.is_file():  # opening a pipe would wait for its writer
        raise ValueError("it is not a file")
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    return msgspec.json.decode(data, type=Entry, strict=True)


def _replace(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
