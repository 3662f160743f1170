"""Stop strings that may span several tokens, without ever showing part of one.

Tokens whose text may be the beginning of a stop string are held back until that is decided. The
text ends at the first character that completes any stop string; if several end there, the longest
is removed. The result depends on the text alone, not on its tokenization.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class StopMatcher(Generic[Item]):
    """Stop string matcher of one text.

    Every pushed item (whatever belongs to a token) is returned exactly once, in order, with the
    text to show for it.

    stops  stop strings, none empty; without any, every token is returned at once
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held: deque[tuple[Item, str]] = deque()
        self._text = ""  # of the held tokens

    def push(self, item: Item, text: str) -> tuple[list[tuple[Item, str]], bool]:
        """Add one token; return the tokens that are decided, and whether the text ended.

        At the end all tokens are returned: the one in which the stop string begins with its text
        before it, those after it with "". Nothing may be pushed after that.
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
        """Return the held tokens: the text ended for another reason."""
        return self._release(len(self._text))

    def _undecided(self) -> int:
        """Return the start of the longest suffix of the held text that is a prefix of a stop
        string."""
        n_chars = len(self._text)
        for start in range(max(0, n_chars - self._longest + 1), n_chars):
            if any(stop.startswith(self._text[start:]) for stop in self._stops):
                return start
        return n_chars

    def _release(self, end: int) -> list[tuple[Item, str]]:
        """Return the tokens that end at or before character `end` of the held text."""
        released: list[tuple[Item, str]] = []
        at = 0
        while self._held and at + len(self._held[0][1]) <= end:
            at += len(self._held[0][1])
            released.append(self._held.popleft())
        self._text = self._text[at:]
        return released

    def _cut(self, end: int) -> list[tuple[Item, str]]:
        """Return all held tokens, with their text truncated at character `end`."""
        released: list[tuple[Item, str]] = []
        at = 0
        for item, text in self._held:
            released.append((item, text[: max(0, end - at)]))
            at += len(text)
        self._held.clear()
        self._text = ""
        return released
