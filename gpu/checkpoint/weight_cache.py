"""Quantised weights, kept for the next start: packing them takes longer than all else in loading.

The packed matrices of a model (`gpu.checkpoint.packing`) lie in one safetensors file in the user's
cache folder, by their names on the device, each with its CRC-32. A file is for one checkpoint (the
sizes, times and samples of its files), its config, a storage type and the code that made it: if any
of them changed, it is not looked at. What is damaged is packed again, to the same bits, and the
file is thrown away. A file appears whole or not at all, and the folder is kept below a bound: those
that were not used for longest go first. A folder that cannot take it is no fault.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from gpu.cache_folder import cache_folder
from gpu.checkpoint.files import Tensor, open_with_metadata
from gpu.checkpoint.packing import FORMATS, U32
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.errors import ModelError

MIN_WEIGHTS = 1 << 24
"""A model of fewer is packed in a second."""
SAMPLES, SAMPLE_BYTES = 64, 4096
"""Of each file of the checkpoint: so many pieces of so many bytes tell it from another of the same
size and time, such as other weights of the same model."""
HEADER_BYTES, HEADER_BYTES_PER_TENSOR = 1 << 14, 256
"""Left free for the header, which is known when all else is written: more than it takes."""
PREFIX, SUFFIX, UNFINISHED = "weights-", ".safetensors", ".part"
ABANDONED_SECONDS = 24 * 3600
"""An unfinished file that nobody has written to for so long has no writer any more."""
MADE_BY = ("checkpoint", "config", "gguf", "models")
"""Packages whose code decides what a packed matrix is."""

Shape = tuple[int, int]

log = logging.getLogger(__name__)


class Kept(Protocol):
    """Packed matrices by name: `find` gives one that is kept, or None; then the loader hands it
    over piece by piece as it packs it."""

    def find(self, name: str, shape: Shape) -> U32 | None: ...

    def add(self, name: str, shape: Shape, rows: U32) -> None: ...


class Nothing:
    """Keeps nothing. Implements `Kept`."""

    def find(self, name: str, shape: Shape) -> U32 | None:
        return None

    def add(self, name: str, shape: Shape, rows: U32) -> None: ...


@contextlib.contextmanager
def kept_weights(
    checkpoint: Checkpoint, config: ModelConfig, dtype: str, limit_bytes: int
) -> Iterator[Kept]:
    """While a model is loaded as `dtype`: what is kept of it, or where to keep it. `limit_bytes`:
    of all files together; 0 keeps none, and looks for none."""
    folder, n_weights = cache_folder(), checkpoint.parameters(config.tie_embeddings)
    if folder is None or not limit_bytes or not is_kept(dtype) or n_weights < MIN_WEIGHTS:
        yield Nothing()
        return
    key = _key(checkpoint, config, dtype)
    path = folder / f"{PREFIX}{key[:32]}{SUFFIX}"
    found = FoundWeights.open(path, key)
    if found is not None:
        yield found
        _remove_oldest(folder, limit_bytes, but=path)
        return
    n_bytes = int(n_weights * FORMATS["q8"].bits_per_weight / 8)  # no less than it will be
    if n_bytes > limit_bytes or not _has_room(folder, n_bytes):
        log.info("%s has no room for packed weights: none are kept", folder)
        yield Nothing()
        return
    new = NewWeights(path, key, len(checkpoint.names()))
    try:
        yield new
        new.finish()
    finally:
        new.close()
    _remove_oldest(folder, limit_bytes, but=path)


def is_kept(dtype: str) -> bool:
    """Are matrices of this storage type? What is only converted is as quick to make as to read."""
    return FORMATS[dtype].grid_bytes > 0


class FoundWeights:
    """A file that was kept. Implements `Kept`."""

    def __init__(self, path: Path, metadata: dict[str, str], tensors: dict[str, Tensor]) -> None:
        self._path = path
        self._sums = metadata
        self._tensors = tensors

    @classmethod
    def open(cls, path: Path, key: str) -> FoundWeights | None:
        """None when there is no file, or one that is damaged, which is thrown away."""
        try:
            if not path.exists():
                return None
            metadata, tensors = open_with_metadata(path)
            if metadata.get("key") != key:
                raise ModelError(f"{path}: is not what its name says")
            with contextlib.suppress(OSError):
                os.utime(path)  # used now
        except (ModelError, OSError) as error:
            _discard(path, str(error))
            return None
        return cls(path, metadata, tensors)

    def find(self, name: str, shape: Shape) -> U32 | None:
        tensor = self._tensors.get(name)
        if tensor is None or (tensor.dtype, tensor.shape) != ("U32", shape):
            _discard(self._path, f"{self._path}: has no {name} of {shape}")
            return None
        if self._sums.get(f"crc32 {name}") != f"{zlib.crc32(tensor.data.data):08x}":
            _discard(self._path, f"{self._path}: {name} is damaged")
            return None
        return np.asarray(tensor.data).view(np.uint32).reshape(shape)

    def add(self, name: str, shape: Shape, rows: U32) -> None: ...


class NewWeights:
    """A file that is being made. Implements `Kept`. A disk that fails ends the file, not the
    loading."""

    def __init__(self, path: Path, key: str, n_tensors: int) -> None:
        self._path = path
        self._reserved = HEADER_BYTES + HEADER_BYTES_PER_TENSOR * n_tensors
        self._shapes: dict[str, Shape] = {}
        self._sums: dict[str, int] = {}
        self._metadata = {"key": key}
        self._file: IO[bytes] | None = None
        self._part = Path()
        with self._or_give_up():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(dir=path.parent, prefix=PREFIX, suffix=UNFINISHED)
            self._file, self._part = os.fdopen(handle, "wb"), Path(part)
            self._file.seek(self._reserved)

    def find(self, name: str, shape: Shape) -> U32 | None:
        if name in self._shapes:
            self._give_up(f"two matrices are called {name}")
        return None

    def add(self, name: str, shape: Shape, rows: U32) -> None:
        """Pieces of a matrix come in order, and after all of the one before."""
        self._shapes[name] = shape
        data = np.ascontiguousarray(rows).data
        self._sums[name] = zlib.crc32(data, self._sums.get(name, 0))
        with self._or_give_up():
            if self._file is not None:
                self._file.write(data)

    def finish(self) -> None:
        """All matrices are there: write the header and give the file its name."""
        with self._or_give_up():
            if self._file is not None:
                self._file.seek(0)
                self._file.write(self._header())
                self._file.close()
                os.replace(self._part, self._path)
                self._file = None

    def close(self) -> None:
        """What is not finished is thrown away."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                self._part.unlink()
            self._file = None

    def _header(self) -> bytes:
        sums = {f"crc32 {name}": f"{crc:08x}" for name, crc in self._sums.items()}
        header: dict[str, object] = {"__metadata__": self._metadata | sums}
        at = 0
        for name, shape in self._shapes.items():
            end = at + 4 * shape[0] * shape[1]
            header[name] = {"dtype": "U32", "shape": shape, "data_offsets": [at, end]}
            at = end
        text = json.dumps(header, separators=(",", ":")).encode()
        n_bytes = self._reserved - 8
        if len(text) > n_bytes:
            raise OSError(f"its header takes {len(text)} bytes of {n_bytes}")
        return n_bytes.to_bytes(8, "little") + text.ljust(n_bytes)

    @contextlib.contextmanager
    def _or_give_up(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        log.warning("packed weights cannot be kept in %s: %s", self._path.parent, why)
        self.close()


def _discard(path: Path, why: str) -> None:
    log.warning("%s; it is thrown away and made anew", why)
    with contextlib.suppress(OSError):
        path.unlink()


# ---- which file it is ------------------------------------------------------------------------


def _key(checkpoint: Checkpoint, config: ModelConfig, dtype: str) -> str:
    parts = [dtype, repr(config), _code_digest(), *map(_identity, checkpoint.paths())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _identity(path: Path) -> str:
    """Size, time, and samples of the bytes of a file, its header first."""
    stat = path.stat()
    digest = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode())
    with path.open("rb", buffering=0) as file:
        for i in range(SAMPLES):
            file.seek(stat.st_size * i // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


@functools.cache
def _code_digest() -> str:
    """Of the code that packs: another may pack otherwise."""
    digest = hashlib.sha256()
    for package in MADE_BY:
        for path in sorted((Path(__file__).parents[1] / package).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


# ---- the folder ------------------------------------------------------------------------------


def _has_room(folder: Path, n_bytes: int) -> bool:
    """Half of what the disk has free is the most that is taken."""
    try:
        while not folder.exists():
            folder = folder.parent
        return 2 * n_bytes <= shutil.disk_usage(folder).free
    except OSError:
        return False


def _remove_oldest(folder: Path, limit_bytes: int, but: Path) -> None:
    """Keep the files together below the limit, and what others left unfinished away."""
    now, found = time.time(), []
    for path in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            if path.suffix == UNFINISHED and now - stat.st_mtime > ABANDONED_SECONDS:
                path.unlink()
            elif path.suffix == SUFFIX:
                found.append((path == but, stat.st_mtime_ns, stat.st_size, path))
    total = sum(n_bytes for _, _, n_bytes, _ in found)
    for _, _, n_bytes, path in sorted(found):
        if total <= limit_bytes:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        total -= n_bytes
