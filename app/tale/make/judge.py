"""What can be said of a text by looking at it: asked words, repeated sentences, likeness.

Pure functions on strings, so the tests and the evaluation share them.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations


def contains(text: str, words: tuple[str, ...]) -> bool:
    """Whether every asked word (or phrase) stands in the text as a word of its own."""
    lowered = text.lower()
    return all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", lowered) for word in words)


def sentences(text: str) -> list[str]:
    """Rough sentences: cut after . ! ? and any closing quote."""
    return [part.strip() for part in re.split(r"(?<=[.!?])\"?\s+", text) if part.strip()]


def most_repeated(text: str) -> int:
    """How often the most frequent sentence of at least three words occurs."""
    counts = Counter(s.lower() for s in sentences(text) if len(s.split()) >= 3)
    return max(counts.values(), default=0)


def four_grams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return set(zip(words, words[1:], words[2:], words[3:], strict=False))


def overlap(texts: list[str]) -> float:
    """Mean share of common word 4-grams (Jaccard) over all pairs: 0 all different, 1 all equal."""
    grams = [four_grams(text) for text in texts]
    likeness = [len(a & b) / max(1, len(a | b)) for a, b in combinations(grams, 2)]
    return sum(likeness) / len(likeness)
