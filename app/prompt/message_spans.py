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
from app.prompt.conversation import Tool, Turn, map_texts, map_turn, texts_of
from app.prompt.prompts import RenderedPrompt, mark_names, render_messages
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
    turns: Sequence[Turn],
    continue_final: bool,
    parts: RenderedPrompt,
    tools: Sequence[Tool] = (),
) -> MessageSpans:
    """Return the spans of the contents of `turns` in the text of `parts`, which is the result of
    `render_prompt(tokenizer, turns, continue_final, tools)`."""
    used = set().union(parts.mark, *map(set, texts_of(turns, tools)))
    free = [mark for mark in NONCHARACTERS if mark not in used]
    if len(free) < 3:  # two for the spans and one for `continue_final`
        return MessageSpans([], list(range(len(turns))))

    def marked(text: str) -> str:
        return mark_names(text, parts.names, parts.mark)

    marked_turns = [map_turn(turn, marked) for turn in turns]
    marked_tools = [map_texts(tool, marked) for tool in tools]
    texts = [turn["content"] for turn in marked_turns]
    for enclose in (_enclosed, _enclosed_core):
        marks = [f"{free[0]}{i}{free[1]}" for i in range(len(texts))]
        enclosed = [
            {**turn, "content": enclose(turn["content"], mark)}
            for turn, mark in zip(marked_turns, marks, strict=True)
        ]
        try:
            text = render_messages(tokenizer, enclosed, continue_final, marked_tools)
        except InvalidRequest:  # the template does not accept the marks
            continue
        text = text.replace(parts.mark, "") if parts.mark else text
        plain, places = _without_marks(text, re.compile(f"{free[0]}(\\d+){free[1]}"))
        if plain == parts.whole:
            return _spans_between(texts, places)
    return MessageSpans([], list(range(len(turns))))


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
