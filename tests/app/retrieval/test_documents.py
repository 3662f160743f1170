"""Documents become text, and what has none is refused in words."""

from __future__ import annotations

import importlib.util
import random
import re

import pytest

from app.retrieval import documents
from app.retrieval.documents import MAX_FILE_BYTES, read_document
from gpu import InvalidRequest
from tests.app.retrieval.pdf_files import pdf_of

TEXT = "# Naïve café\n\n東京 🦊\n"


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        TEXT.encode("utf-8-sig"),
        TEXT.encode("utf-16"),
        b"\xfe\xff" + TEXT.encode("utf-16-be"),
        TEXT.replace("\n", "\r\n").encode(),
    ],
    ids=["utf-8", "with a mark", "utf-16", "big endian", "line ends"],
)
def test_a_text_is_read_in_any_encoding_of_unicode(data: bytes) -> None:
    assert read_document("a.md", data) == TEXT


def test_a_pdf_is_read_page_by_page() -> None:
    assert read_document("a.pdf", pdf_of(["The lamp glows.", "", "The owl sleeps."])) == (
        "The lamp glows.\f\fThe owl sleeps."
    )


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.txt", b"", "a.txt is empty; choose a document with text"),
        ("a.txt", b" \n\t", "a.txt is empty"),
        ("a.png", b"\x89PNG\r\n\x1a\n\0", "a.png is not a text file; expected text in UTF-8"),
        ("a.txt", b"caf\xe9", "a.txt is not a text file"),
        ("", b"x", "expected a name of 1 to 200 printable characters"),
        ("a\nb", b"x", r"printable characters, but got 'a\nb'"),
        ("a" * 201, b"x", "expected a name"),
        ("a.txt", b"x" * (MAX_FILE_BYTES + 1), "at most 8,388,608 are accepted; split it"),
        ("a.pdf", pdf_of(["", ""]), "a.pdf has no text, probably because its pages are scans"),
        ("a.pdf", pdf_of(["x"], "secret"), "a.pdf is encrypted; save it without a password"),
        ("a.pdf", b"%PDF-1.7\nnothing", "a.pdf is damaged or not a PDF file"),
        ("a.pdf", pdf_of([""] * 2001), "a.pdf has 2,001 pages, but at most 2,000 are accepted"),
    ],
)
def test_what_cannot_be_read_is_refused(name: str, data: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        read_document(name, data)


def test_a_pdf_with_random_changes_is_read_or_refused() -> None:
    whole, chance = pdf_of(["The lamp glows."] * 3), random.Random(1)
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 30)):
            data[chance.randrange(8, len(data))] = chance.randrange(256)
        try:
            found = read_document("a.pdf", bytes(data))
        except InvalidRequest as error:
            found = str(error)
        assert found.strip()


def test_a_pdf_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pdf_of(["word " * 2000] * 300)
    monkeypatch.setattr(documents, "READ_SECONDS", 0.01)
    with pytest.raises(InvalidRequest, match="cannot be read: reading it takes longer than 0 s"):
        read_document("a.pdf", data)
    monkeypatch.undo()
    assert read_document("a.pdf", pdf_of(["again"])) == "again"


def test_without_pypdf_a_pdf_is_refused_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"PDF files need pypdf: pip install 'tokenglass\[pdf"):
        read_document("a.pdf", pdf_of(["x"]))
    assert read_document("a.txt", b"text") == "text"
