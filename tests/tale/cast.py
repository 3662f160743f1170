"""Cast of a story: words by kind, and characters, things and places that fit together.

Pairs of a character and a thing are split by a checksum: about one pair in fifty is held out of
the training data and used in the evaluation.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from functools import cache

from tests.tale.grammar import read_sections

HELD_OUT_ONE_IN = 50
MORE_SHARE = 0.22  # share of characters and things from the long lists of rarer words
INVENTED_SHARE = 0.08  # share of invented words, which the model can only copy
INVENTED_NAME_SHARE = 0.12
RARE_SHARE = 0.1  # probability of keeping a rare word that was drawn


# Letters of invented words; repeated letters are likelier.
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
    """Noun and its preposition: `in` `forest`."""

    preposition: str
    noun: str

    @property
    def phrase(self) -> str:
        return f"{self.preposition} the {self.noun}"


@dataclass(frozen=True, slots=True)
class Character:
    """Character of a story; `she` selects its pronouns."""

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
    """Values for the slots of a plot, and the characters that have been introduced."""

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
    """Return each section of `words.txt` as a list of distinct words in file order."""
    sections = read_sections("words.txt")
    return {name: list(dict.fromkeys(_words(lines))) for name, lines in sections.items()}


@cache
def by_prefix(prefix: str) -> dict[str, str]:
    """Return word → kind for the sections named `<prefix> <kind>`, adjectives excluded."""
    return {
        word: name.removeprefix(prefix + " ")
        for name, words in lexicon().items()
        if name.startswith(prefix + " ") and not name.endswith("adjectives")
        for word in words
    }


def kind_of(noun: str) -> str:
    """Return how a character moves, such as "fly"; "walk" for rarer and invented ones."""
    return characters().get(noun, "walk")


def thing_kind(thing: str) -> str:
    """Return the kind of a thing; "other" for rarer and invented ones."""
    return things().get(thing, "other")


def invent_word(rng: random.Random) -> str:
    """Return an invented word of one to three English-sounding syllables."""
    n_syllables = rng.choice((1, 2, 2, 2, 3))
    syllables = (
        rng.choice(ONSETS) + rng.choice(NUCLEI) + rng.choice(CODAS) for _ in range(n_syllables)
    )
    return "".join(syllables)


def draw_noun(sort: str, rng: random.Random, *, invented: bool = True) -> str:
    """Draw a noun of a sort ("characters", "things"): mostly common, sometimes rare or invented."""
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
    """Draw a word; rare ones are mostly rejected."""
    while True:
        word = rng.choice(words)
        if word not in rare or rng.random() < RARE_SHARE:
            return word


def draw_character(
    rng: random.Random, *, noun: str | None = None, named: float = 0.6, helper: bool = False
) -> Character:
    """Draw a character whose name, if any, and pronoun agree with its noun."""
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
    """Draw an adjective that is not part of the noun (no "little little tree")."""
    while (adjective := rng.choice(adjectives)) in noun.split():
        pass
    return adjective


def draw_helper(rng: random.Random, hero: Character, taken: set[str]) -> Character:
    """Draw a helper: sea characters meet sea characters and seabirds, others meet no fish."""
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
    """Draw an adjective: any for a plain noun, a mild one for a noun that already has one."""
    mild = ["strange", "wonderful", "lovely", "beautiful", "curious"]
    plain = " " not in thing or " of " in thing
    return draw_adjective(lexicon()["thing adjectives"] if plain else mild, thing, rng)


def draw_places(
    rng: random.Random, hero: Character, first: str | None
) -> tuple[Place, Place, Place]:
    """Draw three different places that the hero can reach."""
    sea = set(lexicon()["place sea"])
    pool = [noun for noun in places() if (noun in sea) == (hero.kind == "swim") and noun != first]
    one, two, three = rng.sample(pool, 3)
    return places()[one if first is None else first], places()[two], places()[three]
