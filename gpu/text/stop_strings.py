"""Ends a text at a stop string that may lie across several tokens, without ever showing part of it.

Tokens whose text may be the beginning of a stop string are held back until it is clear whether it
is one. The text ends at the first character that completes a stop string, whichever it is; of
several that end there, the longest is cut off. That depends on the text alone, not on how it was
cut into tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class StopMatcher(Generic[Item]):
    """Fed with the tokens of one text. An item is whatever belongs to a token; every item that is
    pushed comes back exactly once, in order, with the text that may be shown for it.

    stops  none of them empty; without any, every token comes back at once
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held: deque[tuple[Item, str]] = deque()
        self._text = ""  # of the held tokens

    def push(self, item: Item, text: str) -> tuple[list[tuple[Item, str]], bool]:
        """Take one token; give back the tokens that are clear, and whether the text ended.

        At the end all tokens come back: the one in which the stop string begins with its text
        before it, those after with "". Nothing may be pushed after that.
        """
        self._held.append((item, text))
        self._text += text
        found = [
            (start + len(stop), start)
            for stop in self._stops
            if (start := self._text.find(stop)) >= 0
        ]
        if found:
            _, start = min(found)
            return self._cut(start), True
        return self._release(self._undecided()), False

    def flush(self) -> list[tuple[Item, str]]:
        """Give back the tokens still held: the text ended for another reason."""
        return self._release(len(self._text))

    def _undecided(self) -> int:
        """Where the longest end of the held text begins that a stop string begins with."""
        n_chars = len(self._text)
        for start in range(max(0, n_chars - self._longest + 1), n_chars):
            if any(stop.startswith(self._text[start:]) for stop in self._stops):
                return start
        return n_chars

    def _release(self, end: int) -> list[tuple[Item, str]]:
        """The tokens that end at or before character `end` of the held text."""
        released: list[tuple[Item, str]] = []
        at = 0
        while self._held and at + len(self._held[0][1]) <= end:
            at += len(self._held[0][1])
            released.append(self._held.popleft())
        self._text = self._text[at:]
        return released

    def _cut(self, end: int) -> list[tuple[Item, str]]:
        """All held tokens, with the text from character `end` on taken away."""
        released: list[tuple[Item, str]] = []
        at = 0
        for item, text in self._held:
            released.append((item, text[: max(0, end - at)]))
            at += len(text)
        self._held.clear()
        self._text = ""
        return released
