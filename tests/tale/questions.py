"""Questions about language models: phrasings, answers, and the check of an answer.

Each topic has its own phrasings and, where it is about a noun, the shared frames of `asks.txt`.
Whole frames and at least one phrasing of every topic are held out. An answer is right when it
contains the topic's key terms and is nearer to this topic's answers than to any other's.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache

from tests.tale.facts import FACTS
from tests.tale.grammar import choose, finish, read_sections

_SINGULAR_S = ("ss", "us", "is", "bias", "embeddings table")


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    nouns: tuple[str, ...]
    phrasings: tuple[str, ...]
    held_phrasings: tuple[str, ...]
    key_terms: tuple[tuple[str, ...], ...]  # every group must occur, in any of its spellings
    answers: tuple[str, ...]


@cache
def topics() -> dict[str, Topic]:
    found = {}
    for heading, lines in read_sections("questions.txt").items():
        name, nouns = heading.split(" : ")
        found[name] = Topic(
            name,
            () if nouns == "-" else tuple(nouns.split(", ")),
            tuple(line[2:] for line in lines if line.startswith("? ")),
            tuple(line[3:] for line in lines if line.startswith("?! ")),
            _key_terms(next(line for line in lines if line.startswith("! "))),
            tuple(with_facts(line) for line in lines if line[0] not in "?!"),
        )
    return found


def _key_terms(line: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(group.lower().split("/")) for group in with_facts(line[2:]).split(", "))


def with_facts(text: str) -> str:
    """Replace `<layers>` and similar slots by the model's own figures."""
    for name, figure in FACTS.items():
        text = text.replace(f"<{name}>", figure)
    return text


def frame(template: str, noun: str, rng: random.Random) -> str:
    """Return a shared frame filled with a noun phrase, with the verb agreeing."""
    last = noun.split()[-1]
    articled = noun.startswith(("a ", "an ", "the ", "this "))
    plural = not articled and last.endswith("s") and not last.endswith(_SINGULAR_S)
    text = choose(template, rng).replace("<is>", "are" if plural else "is")
    text = text.replace("<does>", "do" if plural else "does").replace("<N>", noun)
    return text[0].upper() + text[1:]


def ask(topic: Topic, rng: random.Random, *, held_out: bool = False) -> str:
    """Draw a phrasing of the topic's question, in informal spelling."""
    own = topic.held_phrasings if held_out else topic.phrasings
    if topic.nouns and (rng.random() < 0.6 or not own):
        frames = read_frames()["held frames" if held_out else "frames"]
        text = frame(rng.choice(frames), rng.choice(topic.nouns), rng)
    else:
        text = rng.choice(own)
        text = text[0].upper() + text[1:]
        if text.split()[0].lower() in ("introduce", "please", "tell", "write", "give", "help"):
            text += rng.choice((".", "", "!"))
        else:
            text += "?"
    return text if held_out else roughen(text, rng)


def roughen(text: str, rng: random.Random) -> str:
    """Make a text informal at random: lower case, no final punctuation, a greeting."""
    if rng.random() < 0.08:
        text = rng.choice(("Hi, ", "Hello! ", "Hey, ", "Please: ", "Tell me, ")) + text
    if rng.random() < 0.25:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.25:
        text = text.rstrip("?.!")
    return text


def answer(topic: Topic, rng: random.Random) -> str:
    return finish(choose(rng.choice(topic.answers), rng))


@cache
def read_frames() -> dict[str, list[str]]:
    return read_sections("asks.txt")


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9][a-z0-9.,-]*[a-z0-9]|[a-z0-9]", text.lower()))


@cache
def _answer_words() -> dict[str, list[set[str]]]:
    """Return each topic's answers as word sets, with all alternatives of an answer together."""
    return {
        name: [words_of(re.sub(r"[{}|^]", " ", text)) for text in topic.answers]
        for name, topic in topics().items()
    }


def has_key_terms(text: str, topic: Topic) -> bool:
    lowered = text.lower()
    return all(any(term in lowered for term in group) for group in topic.key_terms)


def nearest_topic(text: str) -> str:
    """Return the topic with the answer that covers most words of `text`."""
    words = words_of(text)
    covered = {
        name: max(len(words & known) for known in answers)
        for name, answers in _answer_words().items()
    }
    return max(covered, key=lambda name: covered[name])


def is_right(text: str, topic: Topic) -> bool:
    return has_key_terms(text, topic) and nearest_topic(text) == topic.name
