"""Character spans of the messages in a rendered conversation.

A chat template is a program, so the contents cannot simply be searched for. The conversation is
rendered again with a mark at both ends of every content, and the marks are located in the result.
Without its marks, the result must be the original text. If not, it is tried again with the marks
inside the white space at the ends of a content, which some templates trim. If that fails too, or
the two marks of a message do not both occur exactly once, its span is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from app.engine_client import Tokenizer
from app.prompt.chat_template import NONCHARACTERS
from app.prompt.prompts import RenderedPrompt, mark_names, render_messages
from app.protocol.messages import Message
from gpu import InvalidRequest


class MessageSpans(NamedTuple):
    """Spans of messages in a text.

    spans     (message index, first character, end) in the order of the text; end is exclusive
    unplaced  indices of messages whose span is unknown
    """

    spans: list[tuple[int, int, int]]
    unplaced: list[int]

    def message_at(self, first: int, end: int) -> int | None:
        """Return the first message that overlaps the characters [first, end), or None."""
        for message, start, stop in self.spans:
            if first < stop and start < end:
                return message
        return None


def find_message_spans(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    continue_final: bool,
    parts: RenderedPrompt,
    whole: str,
) -> MessageSpans:
    """Return the spans of `messages` in `whole`, the joined text of `parts`.

    `parts` is the result of `render_prompt(tokenizer, messages, continue_final)`.
    """
    used = set().union(parts.mark, *(set(message.content) for message in messages))
    free = [mark for mark in NONCHARACTERS if mark not in used]
    if len(free) < 3:  # two for the spans and one for `continue_final`
        return MessageSpans([], list(range(len(messages))))
    texts = [mark_names(message.content, parts.names, parts.mark) for message in messages]
    for enclose in (_enclosed, _enclosed_core):
        marks = [f"{free[0]}{i}{free[1]}" for i in range(len(texts))]
        enclosed = [
            Message(message.role, enclose(text, mark))
            for message, text, mark in zip(messages, texts, marks, strict=True)
        ]
        try:
            text = render_messages(tokenizer, enclosed, continue_final)
        except InvalidRequest:  # the template does not accept the marks
            continue
        text = text.replace(parts.mark, "") if parts.mark else text
        plain, places = _without_marks(text, re.compile(f"{free[0]}(\\d+){free[1]}"))
        if plain == whole:
            return _spans_between(texts, places)
    return MessageSpans([], list(range(len(messages))))


def _spans_between(texts: Sequence[str], places: dict[int, list[int]]) -> MessageSpans:
    spans, unplaced = [], []
    for i, text in enumerate(texts):
        match places.get(i, ()):
            case [start, end] if start < end:
                spans.append((i, start, end))
            case _ if text.strip():
                unplaced.append(i)
    return MessageSpans(sorted(spans, key=lambda span: span[1]), unplaced)


def _enclosed(text: str, mark: str) -> str:
    return mark + text + mark


def _enclosed_core(text: str, mark: str) -> str:
    """Return `text` with marks around its part without leading and trailing white space, so that
    templates still trim it."""
    core = text.strip()
    if not core:
        return text
    start = text.index(core)
    return text[:start] + mark + core + mark + text[start + len(core) :]


def _without_marks(text: str, mark: re.Pattern[str]) -> tuple[str, dict[int, list[int]]]:
    """Return the text without marks, and per message the offsets in it at which marks were."""
    pieces: list[str] = []
    places: dict[int, list[int]] = {}
    n_chars = at = 0
    for match in mark.finditer(text):
        pieces.append(text[at : match.start()])
        n_chars += len(pieces[-1])
        places.setdefault(int(match[1]), []).append(n_chars)
        at = match.end()
    return "".join(pieces) + text[at:], places
