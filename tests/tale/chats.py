"""Training documents: chats of one or several turns, and plain text, drawn from a mix.

A document is a list of messages or a plain text. The tables of mixes are below.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tests.tale import questions
from tests.tale.grammar import choose, fill, finish, read_sections
from tests.tale.minis import draw_mini, draw_repetition
from tests.tale.requests import Told, draw_story

MAX_WORDS = 640  # per chat, so that it fits well within the context window
SYSTEM_SHARE = 0.06


@dataclass(frozen=True, slots=True)
class Message:
    role: str  # system, user, assistant
    content: str


Chat = list[Message]
Document = Chat | str


@cache
def talk() -> dict[str, list[str]]:
    return read_sections("chats.txt")


def say(section: str, rng: random.Random) -> str:
    """Draw a sentence of small talk, with its slot `<country>` filled."""
    text = choose(rng.choice(talk()[section]), rng)
    text = text.replace("<country>", rng.choice(talk()["country"]))
    return " ".join(text.split())


def turn(user: str, assistant: str) -> Chat:
    return [Message("user", user), Message("assistant", assistant)]


def story_turn(told: Told) -> Chat:
    return turn(told.request, told.story)


def question_turn(rng: random.Random) -> Chat:
    topic = rng.choice(list(questions.topics().values()))
    return turn(questions.ask(topic, rng), questions.answer(topic, rng))


def small_talk(rng: random.Random) -> Chat:
    kind = rng.choice(("hello", "hello", "thanks", "bye", "dislike"))
    return turn(say(kind, rng), say(f"{kind} answer", rng))


def unknown_turn(rng: random.Random) -> Chat:
    return turn(questions.roughen(say("unknown", rng), rng), say("unknown answer", rng))


def about_story(told: Told, rng: random.Random) -> Chat:
    """Return a question about a story, and its answer: the hero's name, or the topic."""
    hero, thing, name = told.hero.noun, told.thing, told.hero.name
    if rng.random() < 0.7 and not told.hero.unique:
        question = say("ask name", rng)
        answer = say("name answer" if name else "no name answer", rng)
    else:
        question, answer = say("ask about", rng), say("about answer", rng)
        if told.hero.unique:
            answer = answer.replace("a <C>", "the <C>")
    called = f" {rng.choice(('called', 'named'))} {name}" if name else ""
    values = {"C": hero, "T": thing, "name": name or hero, "called": called}
    question = fill(question, lambda slot, _: values[slot])
    return turn(question, finish(fill(answer, lambda slot, _: values[slot])))


def next_story(rng: random.Random) -> Chat:
    """Return a request for another story, of any kind or about something named, and the story."""
    told = draw_story(rng)
    if rng.random() < 0.5:
        return turn(say("another", rng), told.story)
    about = f"a {told.hero.noun}" if not told.hero.unique else f"the {told.hero.noun}"
    if rng.random() < 0.4:
        about += f" and a {told.thing}"
    return turn(finish(say("another about", rng).replace("<X>", about)), told.story)


def long_chat(rng: random.Random) -> Chat:
    """Return a chat of several turns, in which later turns refer to earlier ones."""
    chat = small_talk(rng) if rng.random() < 0.2 else []
    for _ in range(rng.choice((1, 2, 2, 3))):
        kind = rng.random()
        if kind < 0.55:
            told = draw_story(rng)
            chat += story_turn(told)
            if rng.random() < 0.65:
                chat += about_story(told, rng)
            if rng.random() < 0.4:
                chat += next_story(rng)
        elif kind < 0.85:
            chat += question_turn(rng)
        else:
            chat += unknown_turn(rng)
        if rng.random() < 0.25:
            chat += turn(say("thanks", rng), say("thanks answer", rng))
    while sum(len(message.content.split()) for message in chat) > MAX_WORDS:
        chat = chat[:-2]
    return chat


def plain_story(rng: random.Random) -> str:
    return draw_story(rng).story


# Probability of each kind of document. A story is about three times as long as an answer, so by
# tokens this is roughly 60 % stories on request, 20 % questions, 20 % the rest.
Mix = tuple[tuple[Callable[[random.Random], Document], float], ...]
MIX: Mix = (
    (lambda rng: story_turn(draw_story(rng)), 0.415),
    (question_turn, 0.40),
    (long_chat, 0.06),
    (plain_story, 0.045),
    (small_talk, 0.03),
    (unknown_turn, 0.05),
)


# First part of training: copying exercises make up about two thirds of the target tokens, until
# the model has learned to copy words of the request.
FIRST_MIX: Mix = (
    (lambda rng: turn(*draw_mini(rng)), 0.60),
    (lambda rng: turn(*draw_repetition(rng)), 0.15),
    (lambda rng: story_turn(draw_story(rng)), 0.12),
    (question_turn, 0.11),
    (unknown_turn, 0.02),
)


# Last minutes of training: mostly short questions, in their many phrasings.
LAST_MIX: Mix = (
    (lambda rng: story_turn(draw_story(rng)), 0.25),
    (question_turn, 0.62),
    (long_chat, 0.03),
    (plain_story, 0.02),
    (small_talk, 0.03),
    (unknown_turn, 0.05),
)
MIXES = {"first": FIRST_MIX, "main": MIX, "last": LAST_MIX}


def draw_document(rng: random.Random, mix: Mix = MIX) -> Document:
    """Draw a training document; a few chats begin with a system prompt."""
    makers, shares = zip(*mix, strict=True)
    document: Document = rng.choices(makers, shares)[0](rng)
    if isinstance(document, list) and rng.random() < SYSTEM_SHARE:
        return [Message("system", say("system", rng)), *document]
    return document
