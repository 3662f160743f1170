"""Disk cache of quantised weights: packing them takes longer than the rest of loading.

The packed matrices of a model (`gpu.checkpoint.packing`) are stored in one safetensors file in the
user's cache folder, under their names on the device, each with its CRC-32. The file's key covers
the checkpoint (sizes, times and samples of its files), its config, the storage type and the packing
code; if any of them changes, the file is ignored. Damaged matrices are packed again, with the same
result, and the file is deleted. A file is complete or missing. The folder's size is limited: least
recently used files are deleted first. Errors of the disk never fail loading.
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

from gpu.checkpoint.packing import FORMATS, U32
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.safetensors_files import Tensor, open_with_metadata
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.files.cache_folder import cache_folder

MIN_WEIGHTS = 1 << 24
"""Smaller models are not cached: packing takes less than a second."""
SAMPLES, SAMPLE_BYTES = 64, 4096
"""Samples of each checkpoint file, which distinguish files of equal size and time, such as other
weights of the same model."""
HEADER_BYTES, HEADER_BYTES_PER_TENSOR = 1 << 14, 256
"""Space reserved for the header, which is written last."""
PREFIX, SUFFIX, UNFINISHED = "weights-", ".safetensors", ".part"
ABANDONED_SECONDS = 24 * 3600
"""An unfinished file that was not written to for this long is abandoned."""
MADE_BY = ("checkpoint", "config", "gguf", "models")
"""Packages whose code determines the packed result."""

Shape = tuple[int, int]

log = logging.getLogger(__name__)


class WeightCache(Protocol):
    """Interface of a weight cache.

    `find` returns a cached matrix or None. After None, the loader passes the matrix to `add` chunk
    by chunk as it packs it.
    """

    def find(self, name: str, shape: Shape) -> U32 | None: ...

    def add(self, name: str, shape: Shape, rows: U32) -> None: ...


class NoWeightCache:
    """A `WeightCache` that stores nothing."""

    def find(self, name: str, shape: Shape) -> U32 | None:
        return None

    def add(self, name: str, shape: Shape, rows: U32) -> None: ...


@contextlib.contextmanager
def open_weight_cache(
    checkpoint: Checkpoint, config: ModelConfig, dtype: str, limit_bytes: int
) -> Iterator[WeightCache]:
    """Yield the cache to use while a model is loaded as `dtype`: a reader, a writer, or none.

    limit_bytes  most bytes of all files together; 0 turns the cache off
    """
    folder, n_weights = cache_folder(), checkpoint.parameters(config.tie_embeddings)
    if folder is None or not limit_bytes or not is_cacheable(dtype) or n_weights < MIN_WEIGHTS:
        yield NoWeightCache()
        return
    key = _key(checkpoint, config, dtype)
    path = folder / f"{PREFIX}{key[:32]}{SUFFIX}"
    found = CachedWeights.open(path, key)
    if found is not None:
        yield found
        _remove_oldest(folder, limit_bytes, but=path)
        return
    n_bytes = int(n_weights * FORMATS["q8"].bits_per_weight / 8)  # an upper bound
    if n_bytes > limit_bytes or not _has_room(folder, n_bytes):
        log.info("%s has no room for packed weights: they are not cached", folder)
        yield NoWeightCache()
        return
    new = WeightCacheWriter(path, key, len(checkpoint.names()))
    try:
        yield new
        new.finish()
    finally:
        new.close()
    _remove_oldest(folder, limit_bytes, but=path)


def is_cacheable(dtype: str) -> bool:
    """Return whether matrices of this storage type are cached: converting floats is as fast as
    reading them."""
    return FORMATS[dtype].scale_bytes > 0


class AddedElsewhere:
    """A `WeightCache` for a stage of a model that has a matrix which another stage adds."""

    def __init__(self, cache: WeightCache, name: str) -> None:
        self._cache = cache
        self._name = name

    def find(self, name: str, shape: Shape) -> U32 | None:
        if name == self._name and isinstance(self._cache, WeightCacheWriter):
            return None
        return self._cache.find(name, shape)

    def add(self, name: str, shape: Shape, rows: U32) -> None:
        if name != self._name:
            self._cache.add(name, shape, rows)


class CachedWeights:
    """A `WeightCache` that reads a complete file."""

    def __init__(self, path: Path, metadata: dict[str, str], tensors: dict[str, Tensor]) -> None:
        self._path = path
        self._sums = metadata
        self._tensors = tensors

    @classmethod
    def open(cls, path: Path, key: str) -> CachedWeights | None:
        """Open a cache file; return None if it is missing or damaged. A damaged file is deleted."""
        try:
            if not path.exists():
                return None
            metadata, tensors = open_with_metadata(path)
            if metadata.get("key") != key:
                raise ModelError(f"{path}: its key does not match its name")
            with contextlib.suppress(OSError):
                os.utime(path)  # marks it as recently used
        except (ModelError, OSError) as error:
            _discard(path, str(error))
            return None
        return cls(path, metadata, tensors)

    def find(self, name: str, shape: Shape) -> U32 | None:
        tensor = self._tensors.get(name)
        if tensor is None or (tensor.dtype, tensor.shape) != ("U32", shape):
            _discard(self._path, f"{self._path}: has no {name} of shape {shape}")
            return None
        if self._sums.get(f"crc32 {name}") != f"{zlib.crc32(tensor.data.data):08x}":
            _discard(self._path, f"{self._path}: {name} is damaged")
            return None
        return np.asarray(tensor.data).view(np.uint32).reshape(shape)

    def add(self, name: str, shape: Shape, rows: U32) -> None: ...


class WeightCacheWriter:
    """A `WeightCache` that writes a new file. A disk error stops writing the file, not loading."""

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
        """Append a chunk of a matrix. Chunks come in order, matrix by matrix."""
        self._shapes[name] = shape
        data = np.ascontiguousarray(rows).data
        self._sums[name] = zlib.crc32(data, self._sums.get(name, 0))
        with self._or_give_up():
            if self._file is not None:
                self._file.write(data)

    def finish(self) -> None:
        """Write the header and give the file its final name."""
        with self._or_give_up():
            if self._file is not None:
                self._file.seek(0)
                self._file.write(self._header())
                self._file.close()
                os.replace(self._part, self._path)
                self._file = None

    def close(self) -> None:
        """Delete the file if it is unfinished."""
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
            raise OSError(f"the header needs {len(text)} bytes, but {n_bytes} are reserved")
        return n_bytes.to_bytes(8, "little") + text.ljust(n_bytes)

    @contextlib.contextmanager
    def _or_give_up(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        log.warning("packed weights cannot be cached in %s: %s", self._path.parent, why)
        self.close()


def _discard(path: Path, why: str) -> None:
    log.warning("%s; the file is deleted and made again", why)
    with contextlib.suppress(OSError):
        path.unlink()


# ---- key of a file ---------------------------------------------------------------------------


def _key(checkpoint: Checkpoint, config: ModelConfig, dtype: str) -> str:
    parts = [dtype, repr(config), _code_digest(), *map(_identity, checkpoint.paths())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _identity(path: Path) -> str:
    """Return a digest of a file's size, time and samples of its bytes, including the header."""
    stat = path.stat()
    digest = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode())
    with path.open("rb", buffering=0) as file:
        for i in range(SAMPLES):
            file.seek(stat.st_size * i // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


@functools.cache
def _code_digest() -> str:
    """Return a digest of the code that packs: other code may pack differently."""
    digest = hashlib.sha256()
    for package in MADE_BY:
        for path in sorted((Path(__file__).parents[1] / package).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


# ---- cache folder ----------------------------------------------------------------------------


def _has_room(folder: Path, n_bytes: int) -> bool:
    """Return whether `n_bytes` take at most half of the disk's free space."""
    try:
        while not folder.exists():
            folder = folder.parent
        return 2 * n_bytes <= shutil.disk_usage(folder).free
    except OSError:
        return False


def _remove_oldest(folder: Path, limit_bytes: int, but: Path) -> None:
    """Delete the least recently used files beyond the limit, and abandoned ones."""
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
