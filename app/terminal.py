"""Text of others that a terminal may show: names of models, paths of requests, tokens."""

from __future__ import annotations

_REPLACED = dict.fromkeys(
    {*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}, "\N{REPLACEMENT CHARACTER}"
)


def printable(text: str) -> str:
    """Return a text without control characters, with which a terminal could be made to hide lines
    or to change its title or the clipboard."""
    return text.replace("\r\n", "\n").translate(_REPLACED)
