"""Which characters of a rendered conversation come from which message.

A chat template is a program, so the text is not searched for the contents: it is rendered again
with a mark at both ends of every content, and the marks are found in what comes out. That must be
the same text but for the marks, or it says nothing; then it is tried with the marks inside the
white space at a content's ends, which some templates trim. Where that fails too, or a message's two
marks are not both there once, it is not known what is that message's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from app.chat import NONCHARACTERS
from app.engines import Tokenizer
from app.prompts import Parts, marked, rendered
from app.protocol import Message
from gpu import InvalidRequest


class Owners(NamedTuple):
    """`spans`: message, its first character and the one after its last, in the text's order.
    `unplaced`: messages of which that is not known."""

    spans: list[tuple[int, int, int]]
    unplaced: list[int]

    def of(self, first: int, end: int) -> int | None:
        """The message that characters `first` … `end` − 1 hold a character of; the earliest."""
        for message, start, stop in self.spans:
            if first < stop and start < end:
                return message
        return None


def owners(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    continue_final: bool,
    parts: Parts,
    whole: str,
) -> Owners:
    """Of `whole`, which is the text of `parts`, which is what the template makes of `messages`."""
    used = set().union(parts.mark, *(set(message.content) for message in messages))
    free = [mark for mark in NONCHARACTERS if mark not in used]
    if len(free) < 3:  # two here, and one that `continue_final` needs
        return Owners([], list(range(len(messages))))
    texts = [marked(message.content, parts.names, parts.mark) for message in messages]
    for enclose in (_enclosed, _enclosed_core):
        marks = [f"{free[0]}{i}{free[1]}" for i in range(len(texts))]
        enclosed = [
            Message(message.role, enclose(text, mark))
            for message, text, mark in zip(messages, texts, marks, strict=True)
        ]
        try:
            text = rendered(tokenizer, enclosed, continue_final)
        except InvalidRequest:  # the template minds the marks
            continue
        text = text.replace(parts.mark, "") if parts.mark else text
        plain, places = _without_marks(text, re.compile(f"{free[0]}(\\d+){free[1]}"))
        if plain == whole:
            return _owners(texts, places)
    return Owners([], list(range(len(messages))))


def _owners(texts: Sequence[str], places: dict[int, list[int]]) -> Owners:
    spans, unplaced = [], []
    for i, text in enumerate(texts):
        match places.get(i, ()):
            case [start, end] if start < end:
                spans.append((i, start, end))
            case _ if text.strip():
                unplaced.append(i)
    return Owners(sorted(spans, key=lambda span: span[1]), unplaced)


def _enclosed(text: str, mark: str) -> str:
    return mark + text + mark


def _enclosed_core(text: str, mark: str) -> str:
    """`text` with a mark before its first and after its last character that is not white space,
    so that a template which trims it still does."""
    core = text.strip()
    if not core:
        return text
    start = text.index(core)
    return text[:start] + mark + core + mark + text[start + len(core) :]


def _without_marks(text: str, mark: re.Pattern[str]) -> tuple[str, dict[int, list[int]]]:
    """The text without the marks, and of each message where in it its marks stood."""
    pieces: list[str] = []
    places: dict[int, list[int]] = {}
    n_chars = at = 0
    for match in mark.finditer(text):
        pieces.append(text[at : match.start()])
        n_chars += len(pieces[-1])
        places.setdefault(int(match[1]), []).append(n_chars)
        at = match.end()
    return "".join(pieces) + text[at:], places
