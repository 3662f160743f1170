"""Text that a model or a document has written, on standard output."""

from __future__ import annotations

import sys

import click

REPLACED = dict.fromkeys(
    {*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}, "\N{REPLACEMENT CHARACTER}"
)


def echo_untrusted(text: str, *, nl: bool = True) -> None:
    """Print a text. A terminal gets no control characters, with which it could be made to hide
    lines or to change its title or the clipboard; a file or pipe gets the text as it is."""
    if sys.stdout is not None and sys.stdout.isatty():
        text = text.replace("\r\n", "\n").translate(REPLACED)
    click.echo(text, nl=nl, color=True)  # without it, escape sequences are stripped from a file
