"""Small text grammar: choices, slots, and the spacing, articles and capitals of English.

A template is plain text in which `{a|b|c}` chooses one alternative (they nest, and one may be
empty), `<name>` is a slot filled by the caller, and `^` makes the next letter a capital.
Templates are in `data/*.txt`: a line `== heading` opens a section, `#` starts a comment line.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

DATA = Path(__file__).parent / "data"

Node = str | tuple["Sequence", ...]  # literal text, or the alternatives of one choice
Sequence = tuple[Node, ...]

_SLOT = re.compile(r"<([A-Za-z][\w ]*)>('s)?")
_ARTICLE = re.compile(r"\b([Aa])n? (?=([\w'-]+))")
_VOWEL_SOUND = re.compile(r"[aeiou]|hour|honest", re.IGNORECASE)
_CONSONANT_SOUND = re.compile(r"uni|use|one\b|once\b|ukulele|euro", re.IGNORECASE)
# A sentence begins at the start, after a full stop (also one inside quotes), or right after an
# opening quote.
_SENTENCE = re.compile(r'(^|\n+|[.!?] |\."? |(?:^|[\s])")([a-z])')

# Speech without punctuation before its tag ("he said") gets a comma.
_SAID = "said|asked|cried|called|whispered|shouted|laughed|thought|told"
_UNTAGGED = re.compile(rf'([a-z])" ((?:(?:he|she) )?(?:{_SAID}))\b')

# After `!"` and `?"` a new sentence begins too, unless a tag ("she asked") follows.
_WHO = "(?:it|he|she|they|everyone|people|the others)(?: both| all)? "
_TAG = rf"(?:{_WHO})?(?:{_SAID}|answered|wondered|gasped|panted)\b"
_AFTER_SPEECH = re.compile(rf'([!?]" )(?!{_TAG})([a-z])')


def read_sections(name: str) -> dict[str, list[str]]:
    """Return the lines of `data/<name>` by heading, without comments and blank lines."""
    sections: dict[str, list[str]] = {}
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            current = sections.setdefault(line[3:].strip(), [])
        elif line.strip() and not line.startswith("#"):
            current.append(line)
    return sections


@cache
def parse(template: str) -> Sequence:
    """Parse a template into a tree; cached, so that each is parsed once per process."""
    sequence, end = _parse(template, 0, closing=False)
    if end != len(template):
        raise ValueError(f"unbalanced braces in template: {template!r}")
    return sequence


def _parse(text: str, start: int, *, closing: bool) -> tuple[Sequence, int]:
    """Read nodes from `start` until the end, or until `|` or `}` when inside a choice."""
    nodes: list[Node] = []
    position = literal = start
    while position < len(text):
        character = text[position]
        if character == "{":
            nodes.append(text[literal:position])
            alternatives: list[Sequence] = []
            while text[position : position + 1] in ("{", "|"):
                alternative, position = _parse(text, position + 1, closing=True)
                alternatives.append(alternative)
            if text[position : position + 1] != "}":
                raise ValueError(f"a choice is not closed in template: {text!r}")
            nodes.append(tuple(alternatives))
            position += 1
            literal = position
        elif closing and character in "|}":
            break
        else:
            position += 1
    nodes.append(text[literal:position])
    return tuple(node for node in nodes if node != ""), position


def choose(template: str, rng: random.Random) -> str:
    """Choose one alternative everywhere in the template; slots stay."""
    return _choose(parse(template), rng)


def _choose(sequence: Sequence, rng: random.Random) -> str:
    return "".join(
        node if isinstance(node, str) else _choose(rng.choice(node), rng) for node in sequence
    )


def fill(text: str, value: Callable[[str, bool], str]) -> str:
    """Replace slots from left to right; `value(name, possessive)` may return further slots."""
    while match := _SLOT.search(text):
        possessive = match.group(2) is not None
        replacement = value(match.group(1), possessive) + (match.group(2) or "")
        text = text[: match.start()] + replacement + text[match.end() :]
    return text


def finish(text: str) -> str:
    """Fix spacing, a/an and capitals of a whole text. To be applied once."""
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r" ([,.!?])(?=[\s\"]|$)", r"\1", text)
    text = re.sub(r" *\n *", "\n", text).strip()
    text = re.sub(r'([!?]),"', r'\1"', text)
    text = _UNTAGGED.sub(r'\1," \2', text)
    text = _ARTICLE.sub(_article, text)
    text = re.sub(r"\^(.)", lambda match: match.group(1).upper(), text)
    for start in (_AFTER_SPEECH, _SENTENCE):
        text = start.sub(lambda match: match.group(1) + match.group(2).upper(), text)
    return text


def _article(match: re.Match[str]) -> str:
    word = match.group(2)
    vowel = _VOWEL_SOUND.match(word) and not _CONSONANT_SOUND.match(word)
    return f"{match.group(1)}{'n' if vowel else ''} "
