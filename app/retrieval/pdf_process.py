"""Reading the text of a PDF with pypdf, in a limited process (`app.processes.limited_child`)."""

from __future__ import annotations

import io
import logging

import msgspec
import pypdf
from pypdf.errors import DependencyError, FileNotDecryptedError, PyPdfError

from app.retrieval.pdf_messages import PdfFailed, PdfText

NO_FILES = True
MAX_IDLE_BYTES = 192 << 20
MAX_PAGES = 2000
MAX_REASON_CHARS = 300


def prepare() -> None:
    """Read a small PDF, which imports what pypdf imports when it is first needed."""
    logging.disable()
    writer = pypdf.PdfWriter()
    writer.add_blank_page(10, 10)
    file = io.BytesIO()
    writer.write(file)
    answer(file.getvalue())


def answer(request: bytes) -> bytes:
    """Answer the bytes of a PDF with `PdfText` or `PdfFailed` in MessagePack."""
    try:
        return msgspec.msgpack.encode(_read(request))
    except MemoryError:
        raise
    except (FileNotDecryptedError, DependencyError):
        reason = "is encrypted; save it without a password"
    except PyPdfError as error:
        reason = f"is damaged or not a PDF file: {error}"
    except Exception as error:  # pypdf meets a damaged file in many ways
        reason = f"is damaged or not a PDF file: {type(error).__name__}: {error}"
    shown = reason[:MAX_REASON_CHARS].encode("utf-8", "replace").decode()
    return msgspec.msgpack.encode(PdfFailed(shown.rstrip(".")))


def _read(data: bytes) -> PdfText | PdfFailed:
    reader = pypdf.PdfReader(io.BytesIO(data))
    if len(reader.pages) > MAX_PAGES:
        return PdfFailed(
            f"has {len(reader.pages):,} pages, but at most {MAX_PAGES:,} are accepted; split it"
        )
    texts = [page.extract_text() for page in reader.pages]
    return PdfText([text.encode("utf-8", "replace").decode() for text in texts])
