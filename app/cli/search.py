"""`tokenglass search`: index documents, and find the chunks nearest to a question."""

from __future__ import annotations

import functools
import threading
import time
from pathlib import Path
from typing import Any

import click

from app import tale
from app.cli.errors import BadInput, errors, read_bytes
from app.cli.options import settings_options
from app.cli.untrusted import echo_untrusted
from app.config import Settings
from app.engine.loading import load_engine
from app.engine_client import EngineClient, LocalEngine
from app.models.embedding_models import find_embedding_model
from app.models.encoders import EncoderFolders
from app.models.known import EMBEDDING_WHEELS
from app.models.model_source import ModelSource
from app.models.progress_line import ProgressLine
from app.prompt.encoder_texts import EncoderInputs
from app.retrieval.chunks import ChunkSettings
from app.retrieval.index import missing_packages
from app.retrieval.messages import MAX_TOP, DocumentRequest, SearchRequest
from app.retrieval.retriever import ACTIVE_STATES, Retriever
from gpu import DeviceError, Tokenizer

POLL_SECONDS = 0.1
DEFAULTS = ChunkSettings()
OWNER = "the command line"


@click.command()
@click.argument("question")
@click.argument("documents", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@settings_options(("embedding_model", "backend", "adapter"))
@click.option(
    "--top", default=3, show_default=True, type=click.IntRange(1, MAX_TOP), help="Chunks to find."
)
@click.option("--size", default=DEFAULTS.size, show_default=True, help="Tokens of a chunk.")
@click.option(
    "--overlap", default=DEFAULTS.overlap, show_default=True,
    help="Tokens that a chunk shares with the one before it.",
)  # fmt: skip
def search(
    question: str, documents: tuple[Path, ...], top: int, size: int, overlap: int, **values: Any
) -> None:
    """Find the chunks nearest to QUESTION among the indexed documents, after adding DOCUMENTS
    (text, Markdown, PDF) to them.

    The index is the one that the page of a server on this machine has. Needs `pip install
    tokenglass[search,pdf]`.
    """
    if values["embedding_model"] is None:
        values["embedding_model"] = next(iter(EMBEDDING_WHEELS))
    settings = Settings(**values)
    with errors():
        if missing := missing_packages():
            raise DeviceError(missing)
        embedding = find_embedding_model(settings)
        assert embedding is not None
        folder = tale.model_dir()  # an encoder needs a model that writes: this one is small
        load = functools.partial(
            load_engine, settings, ModelSource(folder), encoders=EncoderFolders(embedding.path)
        )
        engine = LocalEngine(load, Tokenizer.load(folder))
        try:
            _start(engine)
            retriever = Retriever(engine, EncoderInputs(embedding.texts), settings)
            for document in documents:
                data = read_bytes(document)
                _add(retriever, DocumentRequest(document.name, data, ChunkSettings(size, overlap)))
            _show(retriever, SearchRequest(question, top))
        finally:
            engine.close()


def _start(engine: EngineClient) -> None:
    """Load the engine. Raises DeviceError if it cannot be loaded."""
    settled = threading.Event()
    engine.listen(
        lambda status, hello: settled.set() if status.state in ("ready", "failed") else None
    )
    engine.start()
    settled.wait()
    if engine.hello is None:
        raise DeviceError(engine.status.message)


def _add(retriever: Retriever, document: DocumentRequest) -> None:
    """Index a document. Raises what `Retriever.add` raises, and BadInput if that fails later."""
    line = ProgressLine()
    try:
        run = retriever.add(OWNER, document)
        while run.state in ACTIVE_STATES:
            line.show(f"{run.name}: {run.done} of {run.total} chunks have vectors")
            time.sleep(POLL_SECONDS)
            latest = retriever.offer(OWNER).run
            assert latest is not None
            run = latest
    finally:
        line.close()
    if run.state != "done":
        raise BadInput(f"{run.name}: {run.message}")
    click.echo(f"{run.name}: {run.total} chunks indexed in {run.seconds:.1f} s", err=True)


def _show(retriever: Retriever, asked: SearchRequest) -> None:
    for found in retriever.search(OWNER, asked).found:
        page = "" if found.page is None else f", page {found.page}"
        echo_untrusted(f"{found.score:.3f}  {found.document}{page}, chunk {found.number}")
        echo_untrusted(f"{found.text.strip()}\n")
