"""Documents as text: plain text, Markdown, and PDF, which is read in a process with limits.

The pages of a PDF are separated by form feeds, as pdftotext does it.
"""

from __future__ import annotations

import codecs
import importlib.util
import re
from functools import partial

import msgspec

from app.processes.limited_pool import LimitedPool
from app.processes.limited_process import LimitedProcess, LimitExceeded, ProcessLimits
from app.retrieval.pdf_messages import PdfFailed, PdfText
from gpu import InvalidRequest

MAX_FILE_BYTES = 8 << 20
MAX_NAME_CHARS = 200
PAGE_BREAK = "\f"
MISSING_PDF = "PDF files need pypdf: pip install 'tokenglass[pdf]'"
PDF_HEAD = b"%PDF-"
PDF_HEAD_WITHIN = 1024
"""Bytes of a file within which a PDF has its head (ISO 32000, implementation note 13)."""
PDF_LIMITS = ProcessLimits(memory_bytes=512 << 20, reply_bytes=16 << 20)
READ_SECONDS = 30.0
BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
BINARY = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Characters that no text has: control characters except tab, line breaks, form feed and escape."""


def read_document(name: str, data: bytes) -> str:
    """Return the text of a file. Raises InvalidRequest if it has no text or cannot be read, and
    QueueFull while too many PDFs are being read."""
    if not (name.strip() and name.isprintable() and len(name) <= MAX_NAME_CHARS):
        raise InvalidRequest(
            f"expected a name of 1 to {MAX_NAME_CHARS} printable characters, but got {name!r:.80}",
            "name",
        )
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(
            f"{name} has {len(data):,} bytes, but at most {MAX_FILE_BYTES:,} are accepted; split "
            "it",
            "data",
        )
    is_pdf = PDF_HEAD in data[:PDF_HEAD_WITHIN]
    text = PAGE_BREAK.join(_pdf_pages(name, data)) if is_pdf else _decoded(name, data)
    if not text.strip():
        why = (
            "has no text, probably because its pages are scans; run OCR on it first"
            if is_pdf
            else "is empty; choose a document with text"
        )
        raise InvalidRequest(f"{name} {why}", "data")
    return text


def _decoded(name: str, data: bytes) -> str:
    bom, encoding = next((each for each in BOMS if data.startswith(each[0])), (b"", "utf-8"))
    try:
        text = data[len(bom) :].decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if BINARY.search(text):
        raise InvalidRequest(
            f"{name} is not a text file; expected text in UTF-8 or UTF-16, Markdown or PDF",
            "data",
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


# ---- PDF -----------------------------------------------------------------------------------------

_decoder: msgspec.msgpack.Decoder[PdfText | PdfFailed] = msgspec.msgpack.Decoder(
    PdfText | PdfFailed
)
_pool = LimitedPool(
    partial(LimitedProcess.start, "app.retrieval.pdf_process", PDF_LIMITS),
    1,
    "too many PDF files are being read; try again in a moment",
)


def _pdf_pages(name: str, data: bytes) -> list[str]:
    if importlib.util.find_spec("pypdf") is None:
        raise InvalidRequest(MISSING_PDF, "data")
    try:
        reply = _decoder.decode(_pool.call(data, READ_SECONDS))
    except LimitExceeded as error:
        raise InvalidRequest(f"{name} cannot be read: reading it {error}", "data") from None
    if isinstance(reply, PdfFailed):
        raise InvalidRequest(f"{name} {reply.reason}", "data")
    return reply.pages
