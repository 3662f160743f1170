"""Who and what a story is about: words by kind, and a cast that agrees with itself.

Pairs of a character and a thing are split by a checksum: about one pair in fifty is held out,
never told in training, and asked for in the evaluation.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from functools import cache

from app.tale.make.grammar import read_sections

HELD_OUT_ONE_IN = 50
MORE_SHARE = 0.22  # of characters and of things come from the long lists of rarer words
INVENTED_SHARE = 0.08  # are words that do not exist: only copying can get them right
INVENTED_NAME_SHARE = 0.12
RARE_SHARE = 0.1  # a rare word is kept this often when drawn


# Letters of invented words; several of a kind make a letter likelier.
ONSETS = (
    *"bcdfghjklmnprstvwz",
    "bl",
    "br",
    "ch",
    "cl",
    "dr",
    "fl",
    "fr",
    "gl",
    "gr",
    "pl",
    "pr",
    "sk",
)
NUCLEI = (*"aeiouaeiou", "ai", "ea", "ee", "oa", "oo", "ou")
CODAS = ("", "", "", *"bdklmnprstx", "ck", "ll", "ng", "nk", "rt", "sh", "st")


@dataclass(frozen=True, slots=True)
class Place:
    """A noun and the preposition it takes: `in` `forest`."""

    preposition: str
    noun: str

    @property
    def phrase(self) -> str:
        return f"{self.preposition} the {self.noun}"


@dataclass(frozen=True, slots=True)
class Character:
    noun: str
    kind: str  # walk, fly, swim, crawl, person, magical, object, unique
    adjective: str
    name: str | None
    she: bool

    @property
    def unique(self) -> bool:
        return self.kind == "unique"


@dataclass(slots=True)
class Cast:
    """Everything a plot's slots may name, plus which characters have been introduced."""

    hero: Character
    helpers: tuple[Character, Character]
    thing: str
    thing_adjective: str
    places: tuple[Place, Place, Place]
    introduced: set[int] = field(default_factory=set)


def _words(lines: list[str]) -> list[str]:
    return [word.strip() for line in lines for word in line.split(",") if word.strip()]


@cache
def lexicon() -> dict[str, list[str]]:
    """Every section of `words.txt` as a list of words without repeats, in file order."""
    sections = read_sections("words.txt")
    return {name: list(dict.fromkeys(_words(lines))) for name, lines in sections.items()}


@cache
def by_prefix(prefix: str) -> dict[str, str]:
    """word → kind for the sections named `<prefix> <kind>` (adjectives are not a kind)."""
    return {
        word: name.removeprefix(prefix + " ")
        for name, words in lexicon().items()
        if name.startswith(prefix + " ") and not name.endswith("adjectives")
        for word in words
    }


def kind_of(noun: str) -> str:
    """A character's kind; rarer and invented ones walk."""
    return characters().get(noun, "walk")


def thing_kind(thing: str) -> str:
    """A thing's kind; rarer and invented ones fit the plots that take anything."""
    return things().get(thing, "other")


def invent_word(rng: random.Random) -> str:
    """A word of two or three syllables that sounds like English and means nothing."""
    n_syllables = rng.choice((1, 2, 2, 2, 3))
    syllables = (
        rng.choice(ONSETS) + rng.choice(NUCLEI) + rng.choice(CODAS) for _ in range(n_syllables)
    )
    return "".join(syllables)


def draw_noun(sort: str, rng: random.Random, *, invented: bool = True) -> str:
    """A noun of a sort ("characters" or "things"): mostly common, sometimes rarer or invented."""
    words = lexicon()
    share = rng.random()
    if share < INVENTED_SHARE and invented:
        return invent_word(rng)
    if share < INVENTED_SHARE + MORE_SHARE:
        return rng.choice(words[f"more {sort}"])
    known = characters() if sort == "characters" else things()
    return draw_common(list(known), words[f"rare {sort}"], rng)


def characters() -> dict[str, str]:
    return by_prefix("character")


def things() -> dict[str, str]:
    return by_prefix("thing")


@cache
def places() -> dict[str, Place]:
    return {
        noun: Place("in" if prep == "sea" else prep, noun)
        for noun, prep in by_prefix("place").items()
    }


def is_held_out(character: str, thing: str) -> bool:
    return zlib.crc32(f"{character}+{thing}".encode()) % HELD_OUT_ONE_IN == 0


def draw_common(words: list[str], rare: list[str], rng: random.Random) -> str:
    """A word, with the rare ones mostly put back."""
    while True:
        word = rng.choice(words)
        if word not in rare or rng.random() < RARE_SHARE:
            return word


def draw_character(
    rng: random.Random, *, noun: str | None = None, named: float = 0.6, helper: bool = False
) -> Character:
    """A character; its name (if it gets one) and its pronoun agree with the noun."""
    words = lexicon()
    noun = noun or draw_common(list(characters()), words["rare characters"], rng)
    kind = kind_of(noun)
    she: bool | None = True if noun in words["she"] else False if noun in words["he"] else None
    name: str | None = None
    if kind != "unique" and rng.random() < named:
        name = rng.choice(words["names"])
        if not helper and rng.random() < INVENTED_NAME_SHARE:
            name = invent_word(rng).capitalize()
        while she is not None and (name in words["her names"]) != she:
            name = rng.choice(words["names"])
    if she is None:
        undecided = name is None or name in words["either names"]
        she = rng.random() < 0.5 if undecided else name in words["her names"]
    adjectives = words["helper adjectives" if helper else "hero adjectives"]
    return Character(noun, kind, draw_adjective(adjectives, noun, rng), name, she)


def draw_adjective(adjectives: list[str], noun: str, rng: random.Random) -> str:
    """An adjective that the noun does not already carry (no "little little tree")."""
    while (adjective := rng.choice(adjectives)) in noun.split():
        pass
    return adjective


def draw_helper(rng: random.Random, hero: Character, taken: set[str]) -> Character:
    """Company for the hero: sea people meet sea people and seabirds, the others meet no fish."""
    kinds = {"swim"} if hero.kind == "swim" else {"walk", "fly", "crawl", "person", "magical"}
    seabirds = {"seagull", "puffin", "swan", "duck", "sailor", "pirate"}
    pool = [
        noun
        for noun, kind in characters().items()
        if noun not in taken and (kind in kinds or (hero.kind == "swim" and noun in seabirds))
    ]
    helper = draw_character(rng, noun=rng.choice(pool), named=0.25, helper=True)
    if helper.name is not None and helper.name == hero.name:
        return draw_helper(rng, hero, taken)
    return helper


def draw_thing_adjective(thing: str, rng: random.Random) -> str:
    """Any adjective for a plain noun; for a noun that has one already, only the mild ones."""
    mild = ["strange", "wonderful", "lovely", "beautiful", "curious"]
    plain = " " not in thing or " of " in thing
    return draw_adjective(lexicon()["thing adjectives"] if plain else mild, thing, rng)


def draw_places(
    rng: random.Random, hero: Character, first: str | None
) -> tuple[Place, Place, Place]:
    """Three different places that the hero can reach."""
    sea = set(lexicon()["place sea"])
    pool = [noun for noun in places() if (noun in sea) == (hero.kind == "swim") and noun != first]
    one, two, three = rng.sample(pool, 3)
    return places()[one if first is None else first], places()[two], places()[three]
