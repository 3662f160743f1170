"""Indexes documents for whoever uses the server, and finds the chunks that are nearest to a
question.

Where only a browser of this machine can show the page there is one index, `LOCAL`. Elsewhere each
browser session has its own, and the folder keeps the latest `MAX_INDEXES` of them.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from app.config import Settings
from app.engine_client import ASKER_IDS, EngineClient
from app.prompt.encoder_texts import EncoderInputs, EncoderTexts
from app.retrieval.chunks import (
    MAX_CHUNKS,
    Chunk,
    ChunkSettings,
    chunks_of,
    document_prompt,
    query_prompt,
    room_for_text,
)
from app.retrieval.documents import PAGE_BREAK, read_document
from app.retrieval.index import (
    CHUNKS,
    PROBE,
    Document,
    EncoderIdentity,
    Index,
    Vectors,
    bytes_on_disk,
    load_index,
    missing_packages,
    remove_index,
)
from app.retrieval.messages import (
    MAX_DOCUMENTS,
    DocumentRequest,
    FoundChunk,
    IndexRun,
    RetrievalOffer,
    SearchAnswer,
    SearchRequest,
)
from gpu import EmbeddingInfo, EngineError, InvalidRequest, QueueFull, cache_folder
from gpu.inspection.requests import Encode

log = logging.getLogger(__name__)

NOT_FOR_STRANGERS = (
    "this server keeps documents only if its page can be reached from this machine alone; start it "
    "with --retrieval all to let everyone who uses it keep documents"
)
NOT_ELSEWHERE = (
    "the model runs on another machine, and this server has no embedding model of its own"
)
NO_ENCODER = (
    "there is no embedding model; to load one, press the model’s name at the top of the page, then "
    "“Change the model…”, or start the server with --embedding-model all-MiniLM-L6-v2"
)
LOCAL = "local"
MAX_INDEXES = 16
BATCH = 8
"""Chunks whose vectors are computed between two reports of progress."""
ACTIVE_STATES = ("reading", "encoding")


class Cancelled(Exception):
    """The indexing was cancelled."""


class Retriever:
    """Indexes of the documents of each owner, with vectors by the engine's embedding model."""

    def __init__(self, engine: EngineClient, inputs: EncoderInputs, settings: Settings) -> None:
        self._engine = engine
        self._inputs = inputs
        self._settings = settings
        self._lock = threading.RLock()
        """Guards the latest indexing and the files of all indexes."""
        self._run: IndexRun | None = None
        self._owner = ""
        """Client of the latest indexing."""
        self._asker = 0
        self._cancelled = False
        self._probed: tuple[EmbeddingInfo, EncoderIdentity] | None = None
        self._loaded: tuple[tuple[Path, int], Index | None] | None = None
        """The index that was used last, and when its file was written."""

    # ---- what is there --------------------------------------------------------------------------

    def why_not(self) -> str:
        """Return why nothing can be indexed here, and what to do; "" if it can."""
        if self._settings.retrieval == "off":
            return "this server keeps no documents"
        if self._settings.retrieval == "local" and not self._settings.page_is_local:
            return NOT_FOR_STRANGERS
        if missing := missing_packages():
            return missing
        if self._settings.upstream is not None or self._settings.on_other_machines:
            return NOT_ELSEWHERE
        if fault := self._settings.encoder_fault:
            return f"there can be no embedding model here: {fault}"
        return NO_ENCODER if self._inputs.embedding is None else ""

    def offer(self, client: str) -> RetrievalOffer:
        """Return the index of a client. Raises UnavailableError without an engine."""
        if why_not := self.why_not():
            return RetrievalOffer(why_not)
        texts, info = self._encoder()
        room = room_for_text(texts, info.max_tokens)
        defaults = ChunkSettings(min(ChunkSettings().size, room))
        defaults = replace(defaults, overlap=min(defaults.overlap, defaults.size // 8))
        folder = self._folder(client)
        with self._lock:
            run = self._run if self._owner == folder.name else None
            problem, index = "", None
            try:
                index = self._load(folder)
            except InvalidRequest as error:
                problem = str(error)
            return RetrievalOffer(
                problem=problem,
                encoder=info.name,
                room=room,
                defaults=defaults,
                documents=index.documents if index else (),
                chunks=len(index.chunks) if index else 0,
                n_bytes=bytes_on_disk(folder),
                folder=str(folder) if self._settings.page_is_local else "",
                run=run,
            )

    # ---- indexing -------------------------------------------------------------------------------

    def add(self, client: str, asked: DocumentRequest) -> IndexRun:
        """Read a document and begin to index it. Raises InvalidRequest if this client may not index
        or the document cannot be indexed, QueueFull while another one is being indexed, and
        UnavailableError without an engine."""
        self._expect_allowed()
        texts, info = self._encoder()
        asked.settings.validate(room_for_text(texts, info.max_tokens))
        folder = self._folder(client)
        with self._lock:
            if self._run is not None and self._run.state in ACTIVE_STATES:
                raise QueueFull("another document is being indexed; wait until it is done")
            before = self._run, self._owner
            self._run, self._owner = IndexRun(asked.name, "reading"), folder.name
            self._asker, self._cancelled = next(ASKER_IDS), False
        try:
            index = self._present(folder, texts, info).without(asked.name)
            if len(index.documents) >= MAX_DOCUMENTS:
                raise InvalidRequest(
                    f"an index holds at most {MAX_DOCUMENTS} documents; remove one first", "name"
                )
            text = read_document(asked.name, asked.data)
            most = MAX_CHUNKS - len(index.chunks)
            has_pages = PAGE_BREAK in text
            chunks = chunks_of(texts, text, asked.settings, most, has_pages=has_pages)
        except BaseException:
            with self._lock:
                self._run, self._owner = before
            raise
        document = Document(
            asked.name, len(text), len(chunks), sum(chunk.tokens for chunk in chunks),
            asked.settings.size, asked.settings.overlap,
            1 + text.count(PAGE_BREAK) if has_pages else 0,
        )  # fmt: skip

        def work() -> None:
            vectors = self._encode([chunk.text for chunk in chunks], document_prompt(texts))
            with self._lock:  # to the index as it is now: `tokenglass search` writes it, too
                present = self._present(folder, texts, info).without(asked.name)
                self._save(folder, present.added(document, chunks, vectors))

        run = self._change(state="encoding", total=len(chunks))
        threading.Thread(target=self._work, args=(work,), name="index", daemon=True).start()
        return run

    def cancel(self, client: str) -> None:
        """Cancel the client's indexing, if there is one; nothing is kept of its document."""
        with self._lock:
            if self._owner == self._folder(client).name:
                self._cancelled = True
                self._engine.cancel_questions(self._asker)

    def remove(self, client: str, name: str | None) -> None:
        """Remove a document from the client's index, or all (None). Raises InvalidRequest if there
        is none of this name, QueueFull while a document is indexed."""
        self._expect_allowed()
        folder = self._folder(client)
        with self._lock:
            is_active = self._run is not None and self._run.state in ACTIVE_STATES
            if is_active and self._owner == folder.name:
                raise QueueFull("a document is being indexed; wait until it is done, or cancel it")
            if name is None:
                remove_index(folder)
                return
            index = self._load(folder)
            if index is None or all(document.name != name for document in index.documents):
                raise InvalidRequest(f"there is no document {name!r:.200} in the index", "name")
            self._save(folder, index.without(name))

    # ---- searching ------------------------------------------------------------------------------

    def search(self, client: str, asked: SearchRequest) -> SearchAnswer:
        """Return the chunks that are nearest to a question. Raises InvalidRequest if there are no
        documents, or if another embedding model indexed them."""
        self._expect_allowed()
        texts, info = self._encoder()
        with self._lock:
            index = self._load(self._folder(client))
        if index is None:
            raise InvalidRequest("there are no documents yet; add one first", "question")
        if not asked.question.strip():
            raise InvalidRequest("the question is empty; type one", "question")
        began = time.perf_counter()
        ids = texts.encode([asked.question], query_prompt(texts), info.max_tokens)
        [vector] = self._ask(ids)
        encoded = time.perf_counter()
        index.encoder.expect(self._identity(texts, info))
        searched = time.perf_counter()
        nearest = index.search(vector, asked.top, info.similarity)
        ended = time.perf_counter()
        return SearchAnswer(
            tuple(texts.tokenizer.piece(id) for id in ids[0]),
            tuple(vector.tolist()),
            tuple(_found(index, id, score) for id, score in nearest),
            len(index.chunks),
            1000 * (encoded - began),
            1000 * (ended - searched),
            info.similarity,
        )

    # ---- parts ----------------------------------------------------------------------------------

    def _expect_allowed(self) -> None:
        if why_not := self.why_not():
            raise InvalidRequest(why_not, "retrieval")

    def _encoder(self) -> tuple[EncoderTexts, EmbeddingInfo]:
        info, texts = self._engine.require_ready().embedding, self._inputs.embedding
        if texts is None or info is None:
            raise InvalidRequest(NO_ENCODER, "retrieval")
        return texts, info

    def _folder(self, client: str) -> Path:
        """Return the folder of a client's index."""
        cache = cache_folder()
        if cache is None:
            raise InvalidRequest(
                "there is no folder to keep documents in; start the server with "
                "TOKENGLASS_CACHE=FOLDER",
                "retrieval",
            )
        is_shared = self._settings.page_is_local
        owner = LOCAL if is_shared else hashlib.sha256(client.encode()).hexdigest()[:32]
        return cache / "retrieval" / owner

    def _identity(self, texts: EncoderTexts, info: EmbeddingInfo) -> EncoderIdentity:
        """Return the identity of the loaded embedding model. `info`: that of its engine,
        which has another one when it is loaded again."""
        if self._probed is None or self._probed[0] is not info:
            [probe] = self._ask(texts.encode([PROBE], "", info.max_tokens))
            self._probed = info, EncoderIdentity(info.name, tuple(probe.tolist()))
        return self._probed[1]

    def _present(self, folder: Path, texts: EncoderTexts, info: EmbeddingInfo) -> Index:
        """Return the index in `folder`, which must be of the loaded embedding model, or an empty
        one."""
        identity = self._identity(texts, info)
        with self._lock:
            index = self._load(folder)
        if index is None:
            return Index(identity)
        index.encoder.expect(identity)
        return index

    def _load(self, folder: Path) -> Index | None:
        """Return the index in `folder`, which is read again only if it has been written since."""
        try:
            written = (folder / CHUNKS).stat().st_mtime_ns
        except OSError:
            return load_index(folder)
        if self._loaded is None or self._loaded[0] != (folder, written):
            self._loaded = (folder, written), load_index(folder)
        return self._loaded[1]

    def _save(self, folder: Path, index: Index) -> None:
        with self._lock:
            if not folder.exists():
                _make_place(folder)
            index.save(folder)

    def _ask(self, ids: list[list[int]], asker: int = 0) -> Vectors:
        """Return the vectors (len(ids), hidden size) of texts."""
        answer = self._engine.inspect(Encode(ids), asker).result()
        return np.asarray(answer["vectors"], np.float32)

    def _encode(self, chunks: Sequence[str], prompt: str) -> Vectors:
        """Return the vectors of chunks, batch by batch. Raises Cancelled."""
        texts, info = self._encoder()
        found: list[Vectors] = []
        began = time.monotonic()
        for first in range(0, len(chunks), BATCH):
            if self._cancelled:
                raise Cancelled
            batch = chunks[first : first + BATCH]
            found.append(self._ask(texts.encode(batch, prompt, info.max_tokens), self._asker))
            done = sum(map(len, found))
            seconds = time.monotonic() - began
            left = seconds / done * (len(chunks) - done)
            self._change(done=done, seconds=seconds, seconds_left=left)
        return np.concatenate(found)

    def _work(self, work: Callable[[], None]) -> None:
        """Do the work of an indexing, and note how it ended. The engine forgets who asked before
        that, as then another indexing may begin."""
        ended = self._end_of(work)
        self._engine.cancel_questions(self._asker)
        self._change(**ended)

    def _end_of(self, work: Callable[[], None]) -> dict[str, object]:
        """Do the work of an indexing; return the fields of `IndexRun` that say how it ended."""
        try:
            work()
        except Exception as error:
            if self._cancelled:
                return {"state": "cancelled"}
            if isinstance(error, EngineError):
                return {"state": "failed", "message": str(error)}
            if isinstance(error, OSError):
                message = f"the index cannot be written: {error.strerror or error}"
                return {"state": "failed", "message": message}
            log.exception("unexpected error while indexing")
            return {"state": "failed", "message": "the server made a mistake; see its log"}
        return {"state": "done", "seconds_left": 0.0}

    def _change(self, **fields: object) -> IndexRun:
        with self._lock:
            assert self._run is not None
            self._run = replace(self._run, **fields)
            return self._run


def _found(index: Index, id: int, score: float) -> FoundChunk:
    chunk: Chunk = index.chunks[id]
    document = index.documents[chunk.document].name
    number = 1 + sum(other.document == chunk.document for other in index.chunks[:id])
    return FoundChunk(
        id, number, score, document, chunk.page, chunk.start, chunk.tokens, chunk.text
    )


def _make_place(folder: Path) -> None:
    """Remove the indexes of sessions that were written longest ago, so that there is place for
    another."""
    others = sorted(
        (each for each in folder.parent.glob("*") if each.is_dir() and each.name != LOCAL),
        key=lambda each: each.stat().st_mtime,
    )
    for oldest in others[: max(0, len(others) - MAX_INDEXES + 1)]:
        shutil.rmtree(oldest, ignore_errors=True)
