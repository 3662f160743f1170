"""`/api/retrieval`: documents in chunks, indexed by their vectors, and the chunks that are nearest
to a question.

GET     /api/retrieval   `RetrievalOffer`: the documents, or why there can be none, and the latest
                         indexing (pages poll it).
DELETE  /api/retrieval   Cancel the indexing. 202.
POST    /api/retrieval/documents   `DocumentRequest`: begin to index a document. 202 with the run;
                         400 if it cannot or may not be indexed.
DELETE  /api/retrieval/documents, /api/retrieval/documents/NAME   Remove all documents, or one.
POST    /api/retrieval/search      `SearchRequest`, answered with `SearchAnswer`.

Bodies and answers are in `app.retrieval.messages`. Guarded as all routes, see `app.http.security`.
"""

from __future__ import annotations

from flask import Flask, Response, request

from app.config import Settings
from app.engine_client import EngineClient
from app.http.client_limits import client, place
from app.http.json_bodies import answer, read_body
from app.http.request_reader import ChunkedBody
from app.prompt.encoder_texts import EncoderInputs
from app.retrieval.documents import MAX_FILE_BYTES
from app.retrieval.messages import DocumentRequest, SearchRequest
from app.retrieval.retriever import Retriever

EXAMPLE = '{"name": "notes.md", "data": "SGVsbG8gd29ybGQ="}'
MAX_BODY_BYTES = MAX_FILE_BYTES * 4 // 3 + 64 * 1024
"""Bytes of a request with a document: its file in base64, and room for its name and settings."""


def _allow_bytes(n: int) -> None:
    """Let the body of the request have up to `n` bytes, in chunked encoding, too."""
    request.max_content_length = n
    body = request.environ["wsgi.input"]
    if isinstance(body, ChunkedBody):
        body.max_bytes = n


def register(app: Flask, engine: EngineClient, settings: Settings, inputs: EncoderInputs) -> None:
    """Add the routes. `inputs`: the texts of the engine's embedding model, if it has one."""
    retriever = Retriever(engine, inputs, settings)

    @app.get("/api/retrieval")
    def indexed_documents() -> Response:
        return answer(retriever.offer(client()))

    @app.delete("/api/retrieval")
    def cancel_indexing() -> Response:
        retriever.cancel(client())
        return answer({}, 202)

    @app.post("/api/retrieval/documents")
    def add_document() -> Response:
        if not retriever.why_not():  # who may not keep documents may not send large ones either
            _allow_bytes(MAX_BODY_BYTES)
        return answer(retriever.add(client(), read_body(DocumentRequest, EXAMPLE, "data")), 202)

    @app.delete("/api/retrieval/documents")
    def remove_documents() -> Response:
        retriever.remove(client(), None)
        return answer(retriever.offer(client()))

    @app.delete("/api/retrieval/documents/<path:name>")
    def remove_document(name: str) -> Response:
        retriever.remove(client(), name)
        return answer(retriever.offer(client()))

    @app.post("/api/retrieval/search")
    def search_documents() -> Response:
        asked = read_body(SearchRequest, '{"question": "Who keeps the light?"}', "question")
        with place(engine):
            return answer(retriever.search(client(), asked))
