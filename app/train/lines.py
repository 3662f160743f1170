"""The user's lines as examples to train on.

A line is a text, or a question and its answer: `question => answer`, or as TRL has it
`{"prompt": "…", "completion": "…"}`. A pair goes through the model's chat template and only the
answer, with the token that ends it, has a loss. A text ends with the model's end token.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence

import msgspec

from app.engine_client import Tokenizer
from app.prompt.conversation import Turn
from app.prompt.prompts import encode_parts, render_prompt
from app.train.messages import Example
from gpu import InvalidRequest

ARROW = " => "
LINE_BREAK = re.compile(r"\r\n?|\n")
"""What ends a line of JSON Lines: a text in JSON may have U+2028, or others at which `splitlines`
would break it."""
MAX_LINES = 1000
MAX_LINE_TOKENS = 1024
SHARE_HELD_OUT = 0.1
FEWEST_TO_HOLD_OUT = 5
"""With fewer lines all are trained on."""


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question and the answer to it."""

    prompt: str
    completion: str


def examples_of(tokenizer: Tokenizer, text: str, context: int) -> list[Example]:
    """Return an example for each line of `text` that is not blank. `context`: tokens that the model
    can read. Raises InvalidRequest, which names the line."""
    numbered = enumerate(LINE_BREAK.split(text), 1)
    lines = [(n, line.strip()) for n, line in numbered if line.strip()]
    if not lines:
        raise InvalidRequest(
            f"there are no lines to train on; write texts, or question{ARROW}answer", "lines"
        )
    if len(lines) > MAX_LINES:
        raise InvalidRequest(f"expected at most {MAX_LINES} lines, but got {len(lines)}", "lines")
    found = []
    for number, line in lines:
        try:
            found.append(_example(tokenizer, line, min(context, MAX_LINE_TOKENS)))
        except InvalidRequest as error:
            raise InvalidRequest(f"line {number}: {error}", "lines") from None
    return found


def hold_out(examples: Sequence[Example], seed: int) -> tuple[list[Example], list[Example]]:
    """Return the lines to train on, and a tenth of them (at least one) to hold out."""
    n = max(1, round(len(examples) * SHARE_HELD_OUT)) if len(examples) >= FEWEST_TO_HOLD_OUT else 0
    held_out = set(random.Random(seed).sample(range(len(examples)), n))
    train = [each for i, each in enumerate(examples) if i not in held_out]
    return train, [examples[i] for i in sorted(held_out)]


def _example(tokenizer: Tokenizer, line: str, most: int) -> Example:
    pair = _pair(line)
    found = _plain(tokenizer, line) if pair is None else _answered(tokenizer, pair)
    if len(found.ids) - found.n_prompt < 2:
        raise InvalidRequest("expected at least two tokens to train on, but got one; write more")
    if len(found.ids) > most:
        raise InvalidRequest(
            f"it has {len(found.ids):,} tokens, but at most {most:,} are accepted; split it"
        )
    return found


def _pair(line: str) -> Pair | None:
    """Return the line as a pair; None if it is a text."""
    if line.startswith("{"):
        try:
            return msgspec.json.decode(line, type=Pair)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f'expected {{"prompt": "…", "completion": "…"}}, but {error}'
            ) from None
        except msgspec.DecodeError:  # a text that begins with a brace
            return None
    question, arrow, answer = f"{line} ".partition(ARROW)
    return Pair(question.strip(), answer.strip()) if arrow else None


def _plain(tokenizer: Tokenizer, text: str) -> Example:
    return Example((*tokenizer.encode(text, specials=False), *tokenizer.eos_ids[:1]), 1)


def _answered(tokenizer: Tokenizer, pair: Pair) -> Example:
    """Return the answer after its prompt, up to the token that ends it.

    The prompt is what both the conversation before the answer and that with it begin with: a
    template may write an earlier answer in another way than it begins one.
    """
    question: Turn = {"role": "user", "content": pair.prompt}
    answer: Turn = {"role": "assistant", "content": pair.completion}
    before = list(_rendered_ids(tokenizer, [question], asks=True))
    whole = list(_rendered_ids(tokenizer, [question, answer], asks=False))
    pairs = itertools.zip_longest(before, whole)
    n_prompt = next((i for i, (a, b) in enumerate(pairs) if a != b), len(whole))
    ends = (i + 1 for i in range(n_prompt, len(whole)) if whole[i] in tokenizer.eos_ids)
    return Example(tuple(whole[: next(ends, len(whole))]), max(1, n_prompt))


def _rendered_ids(tokenizer: Tokenizer, turns: Sequence[Turn], *, asks: bool) -> Iterator[int]:
    """Yield the ids of a conversation. `asks`: it ends where the model's answer begins."""
    parts = render_prompt(tokenizer, turns, add_generation_prompt=asks).parts
    for encoding in encode_parts(tokenizer, parts):
        yield from encoding.ids
