"""Requests to `/api/retrieval`, and its answers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from app.retrieval.chunks import MAX_CHUNKS, ChunkSettings
from app.retrieval.documents import MAX_FILE_BYTES
from app.retrieval.index import Document

MAX_DOCUMENTS = 64
MAX_QUESTION_CHARS = 2000
MAX_TOP = 20


class DocumentRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document to index. `data`: its file in base64; one of the same name is replaced."""

    name: str
    data: bytes
    settings: ChunkSettings = ChunkSettings()


class SearchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question, and how many chunks to find."""

    question: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_QUESTION_CHARS)]
    top: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOP)] = 3


class FoundChunk(msgspec.Struct, frozen=True):
    """A chunk that was found.

    id      place in the index, from 0
    number  place in the document, from 1
    score   how alike its vector and that of the question are: `SearchAnswer.similarity`
    """

    id: int
    number: int
    score: float
    document: str
    page: int | None
    start: int
    tokens: int
    text: str


class SearchAnswer(msgspec.Struct, frozen=True):
    """The nearest chunks, nearest first.

    pieces                the question's tokens as the embedding model reads them
    vector                the question's
    encode_ms, search_ms  time for the vector, and for finding its nearest among `compared`
    similarity            what scores are: the "cosine" of two vectors, or inner products, "dot"
    """

    pieces: tuple[str, ...]
    vector: tuple[float, ...]
    found: tuple[FoundChunk, ...]
    compared: int
    encode_ms: float
    search_ms: float
    similarity: str


class IndexRun(msgspec.Struct, frozen=True):
    """Latest document that was indexed. `done` of `total` chunks have vectors. `seconds`: time
    that these vectors took; `seconds_left`: None before the first."""

    name: str
    state: Literal["reading", "encoding", "done", "failed", "cancelled"]
    message: str = ""
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    seconds_left: float | None = None


class RetrievalOffer(msgspec.Struct, frozen=True):
    """Documents of the index, its limits, and the latest indexing.

    why_not    why nothing can be indexed here, and what to do; "": it can
    problem    why the index cannot be searched; "": it can
    room       most tokens of a chunk
    n_bytes    size of the index on disk
    folder     where it is; "" for pages on other machines
    """

    why_not: str = ""
    problem: str = ""
    encoder: str = ""
    room: int = 0
    defaults: ChunkSettings = ChunkSettings()
    documents: tuple[Document, ...] = ()
    chunks: int = 0
    n_bytes: int = 0
    folder: str = ""
    max_chunks: int = MAX_CHUNKS
    max_documents: int = MAX_DOCUMENTS
    max_file_bytes: int = MAX_FILE_BYTES
    run: IndexRun | None = None
