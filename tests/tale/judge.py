"""Measures of a text: requested words, repeated sentences, similarity.

The tests and the evaluation share these functions.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations


def contains(text: str, words: tuple[str, ...]) -> bool:
    """Return whether every word (or phrase) occurs in the text as a separate word."""
    lowered = text.lower()
    return all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", lowered) for word in words)


def sentences(text: str) -> list[str]:
    """Split a text into rough sentences, after . ! ? and any closing quote."""
    return [part.strip() for part in re.split(r"(?<=[.!?])\"?\s+", text) if part.strip()]


def most_repeated(text: str) -> int:
    """Count the most frequent sentence of at least three words."""
    counts = Counter(s.lower() for s in sentences(text) if len(s.split()) >= 3)
    return max(counts.values(), default=0)


def four_grams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return set(zip(words, words[1:], words[2:], words[3:], strict=False))


def overlap(texts: list[str]) -> float:
    """Return the mean Jaccard similarity of word 4-grams over all pairs (1: all equal)."""
    grams = [four_grams(text) for text in texts]
    similarities = [len(a & b) / max(1, len(a | b)) for a, b in combinations(grams, 2)]
    return sum(similarities) / len(similarities)
