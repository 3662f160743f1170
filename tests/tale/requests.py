"""Requests for stories, and the stories that answer them.

A request names a character, a thing, both, or neither, and perhaps a name, a place, a mood or
what the character does with the thing; the story then contains all of it. Every pair drawn for
training is checked against the held-out ones, asked for or not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from tests.tale import cast as casting
from tests.tale.cast import Character
from tests.tale.grammar import choose, finish, read_sections
from tests.tale.stories import Plot, Wish, is_answer_to_why, plots, tell

IRREGULAR = {
    "is afraid of": "is afraid of",
    "care for": "cares for",
    "dream": "dreams of",
    "have": "has",
    "laugh": "laughs about",
    "look": "looks for",
    "play with": "plays with",
    "race with": "races with",
    "search": "searches for",
    "travel": "travels with",
    "wish": "wishes for",
}
MOODS = ("funny", "happy", "exciting", "calm", "moral")


@dataclass(frozen=True, slots=True)
class Told:
    """Request, its story, and the requested words in lower case, to be found in the story."""

    request: str
    story: str
    asked: tuple[str, ...]
    hero: Character
    thing: str


@cache
def forms() -> dict[str, list[str]]:
    return read_sections("requests.txt")


def third_person(verb: str) -> str:
    """Return the third person of a verb: find → finds, watch → watches, carry → carries."""
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    if verb.endswith(("s", "sh", "ch", "x")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


def draw_pair(rng: random.Random, *, held_out: bool) -> tuple[str, str]:
    """Draw a character and a thing, from the training pairs or from the held-out pairs."""
    while True:
        noun = casting.draw_noun("characters", rng, invented=not held_out)
        thing = casting.draw_noun("things", rng, invented=not held_out)
        if casting.is_held_out(noun, thing) == held_out:
            return noun, thing


def draw_plot(thing: str, rng: random.Random) -> Plot:
    """Draw a plot that fits the thing; plots made for its kind are preferred."""
    fitting = [plot for plot in plots() if plot.fits(thing) and not is_answer_to_why(plot)]
    special = [plot for plot in fitting if plot.kinds]
    return rng.choice(special if special and rng.random() < 0.4 else fitting)


def draw_story(rng: random.Random, *, held_out: bool = False) -> Told:
    """Draw a request and its story; with `held_out`, with a pair and a wording not in training."""
    noun, thing = draw_pair(rng, held_out=held_out)
    if not held_out and rng.random() < 0.04:
        return _why(noun, thing, rng)
    return story_about(noun, thing, rng, held_out=held_out)


def story_about(noun: str, thing: str, rng: random.Random, *, held_out: bool = False) -> Told:
    """Draw a request that names some of noun, thing, name, place and mood, and its story."""
    hero = casting.draw_character(rng, noun=noun)
    plot = draw_plot(thing, rng)
    shape = (
        "both" if held_out else rng.choices(("both", "hero", "thing", "none"), (67, 16, 10, 7))[0]
    )
    place = _draw_place(hero, rng) if rng.random() < 0.1 and shape != "none" else None
    mood, ask = _draw_ask(rng, held_out=held_out)
    wish = Wish(plot, hero, thing, casting.draw_thing_adjective(thing, rng), place, mood)
    asked: list[str] = []
    about = _about(wish, shape, asked, rng)
    if place is not None:
        spot = casting.places()[place]
        about += f" {spot.phrase}"
        asked.append(place)
    request = finish(f"{ask} {about}{choose(rng.choice(forms()['end']), rng)}")
    if shape == "none" and mood is None and rng.random() < 0.7:
        request = finish(choose(rng.choice(forms()["ask bare"]), rng))
    if rng.random() < 0.15:
        request = request.lower()
    return Told(request, tell(wish, rng), tuple(word.lower() for word in asked), hero, thing)


def _draw_place(hero: Character, rng: random.Random) -> str:
    return casting.draw_places(rng, hero, None)[0].noun


def _draw_ask(rng: random.Random, *, held_out: bool) -> tuple[str | None, str]:
    """Draw the mood of the ending (or None) and the words that request it."""
    if held_out:
        return None, choose(rng.choice(forms()["held ask"]), rng)
    kind = rng.random()
    if kind < 0.15:
        return "bedtime", choose(rng.choice(forms()["ask bedtime"]), rng)
    if kind < 0.30:
        mood = rng.choice(MOODS)
        ask = choose(rng.choice(forms()["ask mood"]), rng)
        return mood, ask.replace("<M>", rng.choice(forms()[f"mood {mood}"]))
    return None, choose(rng.choice(forms()["ask"]), rng)


def _about(wish: Wish, shape: str, asked: list[str], rng: random.Random) -> str:
    """Return the text after "a story about"; add the words the story must contain to `asked`."""
    if shape == "none":
        return rng.choice(
            ("anything", "something nice", "whatever you like", "a friend", "friends")
        )
    thing = _thing_phrase(wish, rng)
    if shape == "thing":
        asked.append(wish.thing)
        return thing
    asked.append(wish.hero.noun)
    hero = _hero_phrase(wish.hero, asked, rng)
    if shape == "hero":
        return hero
    asked.append(wish.thing)
    style = rng.random()
    if style < 0.45:
        return f"{hero} {rng.choice(forms()['join'])} {thing}"
    if style < 0.5:
        return f"{thing} and {hero}"
    who = "that" if wish.hero.kind in ("walk", "fly", "swim", "crawl") and style > 0.85 else "who"
    return f"{hero} {who} {third_person(rng.choice(wish.plot.verbs))} {thing}"


def _thing_phrase(wish: Wish, rng: random.Random) -> str:
    return f"a {wish.thing_adjective} {wish.thing}" if rng.random() < 0.2 else f"a {wish.thing}"


def _hero_phrase(hero: Character, asked: list[str], rng: random.Random) -> str:
    if hero.unique:
        return f"the {hero.noun}"
    plain = f"a {hero.adjective} {hero.noun}" if rng.random() < 0.2 else f"a {hero.noun}"
    if hero.name is None or rng.random() < 0.6:
        return plain
    asked.append(hero.name)
    if rng.random() < 0.2:
        return f"{hero.name} the {hero.noun}"
    return f"{plain} {rng.choice(('called', 'named'))} {hero.name}"


def _why(noun: str, thing: str, rng: random.Random) -> Told:
    """Draw a question like "Why was the moon late?" and the story that answers it."""
    hero = casting.draw_character(rng, noun=noun, named=0.2)
    plot = rng.choice([plot for plot in plots() if is_answer_to_why(plot)])
    state = plot.name.removeprefix("why ")
    request = choose(rng.choice(forms()["why"]), rng)
    request = request.replace("<C>", f"the {noun}").replace("<S>", state)
    mood = "bedtime" if "bedtime" in request else None
    wish = Wish(plot, hero, thing, casting.draw_thing_adjective(thing, rng), None, mood)
    return Told(request, tell(wish, rng), (noun,), hero, thing)
