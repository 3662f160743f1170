"""Make a story from a plot and a cast.

A story has an opening, sometimes a habit of the hero, the plot's beats in order, and sometimes a
closing. The plot always depends on the requested thing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tests.tale import cast as casting
from tests.tale.cast import Cast, Character
from tests.tale.grammar import choose, fill, finish, read_sections

MIN_WORDS, MAX_WORDS = 95, 190  # about 120 to 240 tokens
OPTIONAL_BEAT = 0.3
HABIT = 0.3
CLOSING = 0.35

PRONOUNS = {"he": "she", "him": "her", "his": "her", "himself": "herself"}
MOVES = {"swim": "swam", "fly": "flew", "crawl": "crept"}
WALKS = ("walked", "went", "hurried", "walked", "set out")


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    kinds: frozenset[str]  # kinds of thing it fits; empty means any
    verbs: tuple[str, ...]  # what a request may say the hero does with the thing
    beats: tuple[str, ...]

    def fits(self, thing: str) -> bool:
        return not self.kinds or casting.thing_kind(thing) in self.kinds


@dataclass(frozen=True, slots=True)
class Wish:
    """Requirements on a story; those that are None are free."""

    plot: Plot
    hero: Character
    thing: str
    thing_adjective: str
    place: str | None = None
    mood: str | None = None  # a `closing <mood>` section of phrases.txt


@cache
def plots() -> tuple[Plot, ...]:
    """Return the plots of `plots.txt`, which have headings `name : kinds : verbs`."""
    found = []
    for heading, beats in read_sections("plots.txt").items():
        name, kinds, verbs = (part.strip() for part in heading.split(" : "))
        fits = frozenset() if kinds == "any" else frozenset(kinds.split(", "))
        found.append(Plot(name, fits, tuple(verbs.split(", ")), tuple(beats)))
    return tuple(found)


def is_answer_to_why(plot: Plot) -> bool:
    return "why" in plot.verbs


@cache
def phrases() -> dict[str, list[str]]:
    return read_sections("phrases.txt")


def draw_cast(wish: Wish, rng: random.Random) -> Cast:
    """Draw helpers and places for the wish's hero and thing."""
    first = casting.draw_helper(rng, wish.hero, {wish.hero.noun})
    second = casting.draw_helper(rng, wish.hero, {wish.hero.noun, first.noun})
    spots = casting.draw_places(rng, wish.hero, wish.place)
    return Cast(wish.hero, (first, second), wish.thing, wish.thing_adjective, spots)


def tell(wish: Wish, rng: random.Random) -> str:
    """Draw a story; too long or too short ones are rejected."""
    while True:
        text = _tell_once(wish, rng)
        if MIN_WORDS <= len(text.split()) <= MAX_WORDS and wish.thing in text:
            return text


def _tell_once(wish: Wish, rng: random.Random) -> str:
    slots = Slots(draw_cast(wish, rng), rng)
    lines = [_opening(wish.hero, rng)]
    if rng.random() < HABIT:
        lines.append(rng.choice(phrases()["habit"]))
    for beat in wish.plot.beats:
        if not beat.startswith("?"):
            lines.append(beat)
        elif rng.random() < OPTIONAL_BEAT:
            lines.append(beat[1:])
    if wish.mood is not None:
        lines.append(rng.choice(phrases()[f"closing {wish.mood}"]))
    elif rng.random() < CLOSING:
        lines.append(rng.choice(phrases()["closing"]))
    breaks = {rng.randint(2, 3), rng.randint(5, 7)}
    text = "".join(
        choose(line, rng) + ("\n\n" if index in breaks and index < len(lines) else " ")
        for index, line in enumerate(lines, start=1)
    )
    return finish(fill(text, slots.value))


def _opening(hero: Character, rng: random.Random) -> str:
    if hero.unique:
        return rng.choice(phrases()["opening unique"])
    if hero.name is not None and rng.random() < 0.4:
        return rng.choice(phrases()["opening named"])
    return rng.choice(phrases()["opening"])


class Slots:
    """Values for a template's slots. A helper is first "an owl", then "the owl"."""

    def __init__(self, cast: Cast, rng: random.Random) -> None:
        self.cast = cast
        self.rng = rng
        self.adjective_told = False

    def value(self, name: str, possessive: bool) -> str:
        """Return the text for `<name>`, capitalised if the name is."""
        if name[0].isupper() and name.lower() != name and name not in phrases():
            text = self.value(name[0].lower() + name[1:], possessive)
            return f"^{text}"
        if name in phrases():
            return choose(self.rng.choice(phrases()[name]), self.rng)
        if (pronoun := self._pronoun(name)) is not None:
            return pronoun
        if name in ("helper", "helper2"):
            return self._helper(0 if name == "helper" else 1, possessive)
        return self._fixed()[name]()

    def _fixed(self) -> dict[str, Callable[[], str]]:
        cast = self.cast
        return {
            "hero": self._hero,
            "name": lambda: cast.hero.name or f"the {cast.hero.noun}",
            "hero call": lambda: cast.hero.name or f"my dear {cast.hero.noun}",
            "a hero": lambda: self._intro("a"),
            "the hero": lambda: self._intro("the"),
            "noun": lambda: cast.hero.noun,
            "a noun": self._described,
            "thing": lambda: cast.thing,
            "thing_the": lambda: f"the {cast.thing}",
            "adj": lambda: cast.thing_adjective,
            "place": lambda: f"the {cast.places[0].noun}",
            "in place": lambda: cast.places[0].phrase,
            "place2": lambda: f"the {cast.places[1].noun}",
            "in place2": lambda: cast.places[1].phrase,
            "place3": lambda: f"the {cast.places[2].noun}",
            "in place3": lambda: cast.places[2].phrase,
            "went": lambda: MOVES.get(cast.hero.kind) or self.rng.choice(WALKS),
        }

    def _pronoun(self, name: str) -> str | None:
        """Return the pronoun for `he`, `him`, … (hero) or `he2`, `he3` (helpers), else None."""
        base, index = (name[:-1], int(name[-1])) if name[-1] in "23" else (name, 1)
        if base not in PRONOUNS:
            return None
        who = self.cast.hero if index == 1 else self.cast.helpers[index - 2]
        return PRONOUNS[base] if who.she else base

    def _hero(self) -> str:
        hero = self.cast.hero
        if hero.name is not None and self.rng.random() < 0.75:
            return hero.name
        if self.adjective_told and self.rng.random() < 0.2:
            return f"the {hero.adjective} {hero.noun}"
        return f"the {hero.noun}"

    def _intro(self, article: str) -> str:
        hero = self.cast.hero
        if hero.name is not None and self.rng.random() < 0.3:
            return f"{hero.name} the {hero.noun}"
        self.adjective_told = self.rng.random() < 0.7
        plain = f"{hero.adjective} {hero.noun}" if self.adjective_told else hero.noun
        if hero.name is None:
            return f"{article} {plain}"
        return f"{article} {plain} {self.rng.choice(('called', 'named'))} {hero.name}"

    def _described(self) -> str:
        self.adjective_told = True
        return f"a {self.cast.hero.adjective} {self.cast.hero.noun}"

    def _helper(self, index: int, possessive: bool) -> str:
        helper = self.cast.helpers[index]
        if index in self.cast.introduced:
            if helper.name is not None and self.rng.random() < 0.7:
                return helper.name
            return f"the {helper.noun}"
        self.cast.introduced.add(index)
        if possessive:
            his = "her" if self.cast.hero.she else "his"
            return f"{his} friend the {helper.noun}"
        plain = f"{helper.adjective} {helper.noun}" if self.rng.random() < 0.5 else helper.noun
        if helper.name is not None:
            return f"a {plain} {self.rng.choice(('called', 'named'))} {helper.name}"
        return f"a {plain}"
