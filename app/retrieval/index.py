"""Index of chunks: FAISS's flat index of inner products, and a second file with the chunks and the
embedding model that made the vectors.

A folder has `chunks.json` and `index-….faiss`, which other programs can read. The name of the
latter has the digest of its content. `chunks.json` has this digest, too, and is replaced last, in
one step: a reader finds either the old index or the new one.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from app.retrieval.chunks import Chunk
from gpu import InvalidRequest, replace_file

MISSING = "retrieval needs FAISS: pip install 'tokenglass[search]'"
CHUNKS = "chunks.json"
VERSION = 1
MIN_COSINE = 0.999
"""Least cosine of two vectors of a text by the same model; devices differ in their rounding."""

Vectors = npt.NDArray[np.float32]


def missing_packages() -> str:
    """Return what to install before documents can be indexed; "" if all is there."""
    return "" if importlib.util.find_spec("faiss") else MISSING


class EncoderIdentity(msgspec.Struct, frozen=True):
    """Embedding model of an index. `probe`: its vector of `PROBE`, which no other model has."""

    name: str
    probe: tuple[float, ...]

    def expect(self, other: EncoderIdentity) -> None:
        """Raise InvalidRequest unless `other` is the same model."""
        a, b = np.array(self.probe), np.array(other.probe)
        if len(a) == len(b) and a @ b >= MIN_COSINE * float(np.sqrt((a @ a) * (b @ b))):
            return
        raise InvalidRequest(
            f"the index was made with the embedding model {self.name}, but {other.name} is loaded, "
            "and vectors of two models cannot be compared; remove all documents and add them again",
            "index",
        )


PROBE = "Which embedding model is this?"


class Document(msgspec.Struct, frozen=True):
    """A document of an index. `size`, `overlap`: see `ChunkSettings`; `pages`: 0 if it has none."""

    name: str
    chars: int
    chunks: int
    tokens: int
    size: int
    overlap: int
    pages: int = 0


class _Manifest(msgspec.Struct, frozen=True):
    """Content of `chunks.json`."""

    version: int
    encoder: EncoderIdentity
    sha256: str
    documents: tuple[Document, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Index:
    """Documents, their chunks, and `vectors` (chunks, hidden size) of these."""

    encoder: EncoderIdentity
    documents: tuple[Document, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    vectors: Vectors | None = None

    def added(self, document: Document, chunks: Sequence[Chunk], vectors: Vectors) -> Index:
        """Return the index with another document."""
        number = len(self.documents)
        own = tuple(msgspec.structs.replace(chunk, document=number) for chunk in chunks)
        together = vectors if self.vectors is None else np.concatenate((self.vectors, vectors))
        return Index(self.encoder, (*self.documents, document), (*self.chunks, *own), together)

    def without(self, name: str) -> Index:
        """Return the index without the document of this name."""
        kept = [i for i, document in enumerate(self.documents) if document.name != name]
        numbers = {old: new for new, old in enumerate(kept)}
        rows = [i for i, chunk in enumerate(self.chunks) if chunk.document in numbers]
        chunks = (self.chunks[i] for i in rows)
        return Index(
            self.encoder,
            tuple(self.documents[i] for i in kept),
            tuple(msgspec.structs.replace(one, document=numbers[one.document]) for one in chunks),
            self.vectors[rows] if self.vectors is not None and rows else None,
        )

    def search(self, vector: Vectors, top: int, similarity: str) -> list[tuple[int, float]]:
        """Return the numbers of the `top` chunks whose vectors are most alike to `vector` (hidden
        size,), the most alike first, and how alike they are. `similarity`: the "cosine" of two
        vectors, or their inner product, "dot"."""
        if self.vectors is None:
            return []
        both = self.vectors, vector[None]
        vectors, wanted = both if similarity == "dot" else map(_of_length_1, both)
        scores, numbers = _faiss_index(vectors).search(wanted, min(top, len(self.chunks)))
        return [(int(i), float(score)) for i, score in zip(numbers[0], scores[0], strict=True)]

    def save(self, folder: Path) -> None:
        """Write the index, in place of the one in `folder`. Raises OSError."""
        import faiss

        if self.vectors is None:
            remove_index(folder)
            return
        folder.mkdir(parents=True, exist_ok=True)
        data = faiss.serialize_index(_faiss_index(self.vectors)).tobytes()
        digest = hashlib.sha256(data).hexdigest()
        name = _faiss_name(digest)
        replace_file(folder / name, data)
        manifest = _Manifest(VERSION, self.encoder, digest, self.documents, self.chunks)
        replace_file(folder / CHUNKS, msgspec.json.encode(manifest))
        _remove_files(folder, kept=(name, CHUNKS))


def load_index(folder: Path) -> Index | None:
    """Return the index in `folder`; None if there is none. Raises InvalidRequest if it is damaged,
    or written by another version."""
    import faiss

    manifest = _read_manifest(folder)
    if manifest is None:
        return None
    name = _faiss_name(manifest.sha256)
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise _damaged(f"{name} cannot be read ({error.strerror})") from None
    if hashlib.sha256(data).hexdigest() != manifest.sha256:
        raise _damaged(f"{name} was changed")
    found = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    if (found.ntotal, found.d) != (len(manifest.chunks), len(manifest.encoder.probe)):
        raise _damaged(f"{CHUNKS} belongs to another index")
    vectors = found.reconstruct_n(0, found.ntotal)
    return Index(manifest.encoder, manifest.documents, manifest.chunks, vectors)


def remove_index(folder: Path) -> None:
    """Remove an index, also a damaged one."""
    if folder.exists():
        _remove_files(folder)
        folder.rmdir()


def bytes_on_disk(folder: Path) -> int:
    """Return the size of the files of an index."""
    return sum(file.stat().st_size for file in folder.glob("*") if file.is_file())


def _remove_files(folder: Path, kept: Sequence[str] = ()) -> None:
    """Remove all files but those `kept`, including what a crash left of a write."""
    for file in folder.iterdir():
        if file.name not in kept:
            file.unlink(missing_ok=True)


def _faiss_name(sha256: str) -> str:
    return f"index-{sha256[:16]}.faiss"


def _read_manifest(folder: Path) -> _Manifest | None:
    try:
        manifest = msgspec.json.decode((folder / CHUNKS).read_bytes(), type=_Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(f"{CHUNKS}: {error}") from None
    if manifest.version != VERSION:
        raise _damaged(f"{CHUNKS} has version {manifest.version}, expected {VERSION}")
    return manifest


def _damaged(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the index cannot be used: {why}; remove all documents and add them again",
        "index",
    )


def _of_length_1(vectors: Vectors) -> Vectors:
    """Return the vectors, scaled: their inner products are cosines. 0 stays 0."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled


def _faiss_index(vectors: Vectors) -> Any:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors, np.float32))
    return index
