"""Copying exercises repeat the words of the request and use no held-out pair."""

from __future__ import annotations

import random

from tests.tale import cast
from tests.tale.chats import FIRST_MIX, draw_document
from tests.tale.minis import draw_mini, draw_repetition


def test_a_very_short_story_says_the_asked_thing_at_least_twice() -> None:
    rng = random.Random(2)
    for _ in range(300):
        request, story = draw_mini(rng)
        thing = request.rstrip(".").split(" a ")[-1].split(" an ")[-1]
        assert story.lower().count(thing.lower()) >= 2, (request, story)
        assert story[-1] in '.!?"'
        assert len(story.split()) <= 45


def test_a_repetition_is_what_stands_after_the_colon() -> None:
    rng = random.Random(2)
    for _ in range(100):
        request, words = draw_repetition(rng)
        assert request.endswith(f": {words}")
        assert not set("<>{}|") & set(request)


def test_no_word_kept_for_the_evaluation_is_ever_drawn() -> None:
    rng = random.Random(5)
    words = cast.lexicon()
    unseen = {*words["unseen characters"], *words["unseen things"]}
    seen = {
        word for name, list_ in words.items() if not name.startswith("unseen") for word in list_
    }
    assert not unseen & seen
    for _ in range(500):
        document = draw_document(rng, FIRST_MIX)
        text = document if isinstance(document, str) else " ".join(m.content for m in document)
        assert not unseen & set(text.lower().split())
