"""Very short stories and repetitions: exercises in copying the words of a request.

In a long story the words to copy are a few among two hundred, and a small model may never learn
to look them up. Here they are repeated within a sentence or two.
"""

from __future__ import annotations

import random
from functools import cache

from tests.tale import cast as casting
from tests.tale.grammar import choose, fill, finish, read_sections
from tests.tale.requests import draw_pair
from tests.tale.stories import Slots, Wish, draw_cast, plots


@cache
def forms() -> dict[str, list[str]]:
    return read_sections("minis.txt")


def draw_mini(rng: random.Random) -> tuple[str, str]:
    """Draw a request for a tiny story about a character and a thing, and the story."""
    noun, thing = draw_pair(rng, held_out=False)
    hero = casting.draw_character(rng, noun=noun, named=0.4)
    wish = Wish(plots()[0], hero, thing, casting.draw_thing_adjective(thing, rng))
    article = "the" if hero.unique else "a"
    named = f" called {hero.name}" if hero.name and rng.random() < 0.5 else ""
    about = f"{article} {noun}{named} {rng.choice(('and', 'with', 'who has'))} a {thing}"
    request = finish(f"{choose(rng.choice(forms()['ask']), rng)} {about}.")
    slots = Slots(draw_cast(wish, rng), rng)
    return request, finish(fill(choose(rng.choice(forms()["tell"]), rng), slots.value))


def draw_repetition(rng: random.Random) -> tuple[str, str]:
    """Draw a request to repeat some words, and the answer."""
    sorts = ("characters", "things")
    nouns = [casting.draw_noun(rng.choice(sorts), rng) for _ in range(rng.randint(1, 5))]
    names = rng.sample(casting.lexicon()["names"], rng.randint(0, 2))
    words = ", ".join(rng.sample(nouns + names, len(nouns + names)))
    return choose(rng.choice(forms()["repeat"]), rng).replace("<words>", words), words
