"""Pieces of an answer in which a model may call tools: content, and parts of calls."""

from __future__ import annotations

from typing import NamedTuple


class Content(NamedTuple):
    """Text outside the calls."""

    text: str


class CallBegin(NamedTuple):
    """A call begins: its number in the answer and the name of the function."""

    call: int
    name: str


class CallArguments(NamedTuple):
    """The next characters of a call's arguments, as the model writes them."""

    call: int
    text: str


Piece = Content | CallBegin | CallArguments


def add_piece(pieces: list[Piece], piece: Piece) -> None:
    """Append `piece`, or lengthen the last one if both are parts of the same text."""
    match pieces[-1:], piece:
        case [Content(before)], Content(text):
            pieces[-1] = Content(before + text)
        case [CallArguments(call, before)], CallArguments(same, text) if call == same:
            pieces[-1] = CallArguments(call, before + text)
        case _:
            pieces.append(piece)
