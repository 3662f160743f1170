"""The text grammar handles choices, slots, articles and capitals."""

from __future__ import annotations

import random

import pytest

from tests.tale.grammar import DATA, choose, fill, finish, parse, read_sections


def test_choices_nest_and_every_alternative_can_come() -> None:
    rng = random.Random(0)
    readings = {choose("a {b|c{d|}} e", rng) for _ in range(100)}
    assert readings == {"a b e", "a cd e", "a c e"}


@pytest.mark.parametrize("template", ["a {b", "a {b|c", "{a|{b}"])
def test_an_unbalanced_template_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"closed|unbalanced"):
        parse(template)


def test_slots_are_filled_from_left_to_right_and_may_hold_slots() -> None:
    seen: list[tuple[str, bool]] = []

    def value(name: str, possessive: bool) -> str:
        seen.append((name, possessive))
        return {"x": "[<y>]", "y": "1", "z": "2"}[name]

    assert fill("<x> <z>'s", value) == "[1] 2's"
    assert seen == [("x", False), ("y", False), ("z", True)]


@pytest.mark.parametrize(
    ("raw", "finished"),
    [
        ("a owl saw an fox", "An owl saw a fox"),
        ("a unicorn, a hour, an useful key", "A unicorn, an hour, a useful key"),
        (
            '"come," said the fox. "we go." the owl came.',
            '"Come," said the fox. "We go." The owl came.',
        ),
        (
            '"where?" asked the fox. "here!" the owl came.',
            '"Where?" asked the fox. "Here!" The owl came.',
        ),
        ('"no" said the fox. "why?," she asked', '"No," said the fox. "Why?" she asked'),
        ("one  .  two\n\nthree", "One. Two\n\nThree"),
    ],
)
def test_finishing_fixes_articles_capitals_and_punctuation(raw: str, finished: str) -> None:
    assert finish(raw) == finished


@pytest.mark.parametrize("path", sorted(DATA.glob("*.txt")), ids=lambda path: path.name)
def test_every_line_of_the_data_is_a_template(path: object) -> None:
    name = str(path).rsplit("/", 1)[-1]
    for lines in read_sections(name).values():
        for line in lines:
            parse(line)
