"""Answers of the process that reads PDF files. They are here because that process needs pypdf."""

from __future__ import annotations

import msgspec


class PdfText(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Text of each page."""

    pages: list[str]


class PdfFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The file cannot be read. The reason is written to follow the file's name."""

    reason: str
