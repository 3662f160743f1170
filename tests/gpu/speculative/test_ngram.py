"""Prompt lookup beside a search of the whole text."""

from __future__ import annotations

import random

import pytest

from gpu.speculative.ngram import LONGEST, SHORTEST, NgramDrafter


def searched(ids: list[int], most: int) -> list[int]:
    """Return what followed the latest earlier occurrence of the longest end of `ids`; where it
    reaches into that end, the text is continued by what was found."""
    for n in range(LONGEST, SHORTEST - 1, -1):
        for at in range(len(ids) - 1, n - 1, -1):
            if ids[at - n : at] == ids[-n:]:
                found = list(ids)
                while len(found) < len(ids) + most:
                    found.append(found[at + len(found) - len(ids)])
                return found[len(ids) :]
    return []


@pytest.mark.parametrize("seed", range(5))
def test_drafts_are_what_followed_the_longest_match(seed: int) -> None:
    draw = random.Random(seed)
    drafter, ids = NgramDrafter(), [draw.randint(1, 3) for _ in range(draw.randint(0, 9))]
    n_found = 0
    for _ in range(200):
        ids.append(draw.randint(1, 3 if draw.random() < 0.9 else 50))
        most = draw.randint(1, 7)
        drafts = drafter.propose(ids, most)
        assert drafts == searched(ids, most)
        n_found += bool(drafts)
    assert 20 < n_found < 200


def test_pieces_of_a_prompt_are_indexed_like_the_whole() -> None:
    ids = [1, 2, 3, 4, 5, 9, 9, 1, 2, 3]
    by_pieces = NgramDrafter()
    for end in (3, 4, 9):
        by_pieces.extend(ids, end)
    assert by_pieces.propose(ids, 3) == NgramDrafter().propose(ids, 3) == [4, 5, 9]


def test_a_text_too_short_or_new_has_no_drafts() -> None:
    assert NgramDrafter().propose([], 4) == []
    assert NgramDrafter().propose([1], 4) == []
    assert NgramDrafter().propose([1, 2, 3], 4) == []
