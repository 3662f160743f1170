"""Text that a model or a document has written, on standard output."""

from __future__ import annotations

import sys

import click

from app.terminal import printable


def echo_untrusted(text: str, *, nl: bool = True) -> None:
    """Print a text. A terminal gets no control characters; a file or pipe gets the text as it
    is."""
    if sys.stdout is not None and sys.stdout.isatty():
        text = printable(text)
    click.echo(text, nl=nl, color=True)  # without it, escape sequences are stripped from a file
