"""Lines of a user become examples: texts, or answers after their questions."""

from __future__ import annotations

import pytest

from app.train.lines import MAX_LINES, examples_of, hold_out
from app.train.messages import Example
from gpu import InvalidRequest
from tests.app.fake_tokenizer import BOS, EOS, FakeTokenizer

TOKENIZER = FakeTokenizer()
CONTEXT = 200


def examples(text: str) -> list[Example]:
    return examples_of(TOKENIZER, text, CONTEXT)


def trained(example: Example) -> str:
    return TOKENIZER.decode(example.ids[example.n_prompt :])


def test_a_text_is_trained_on_from_its_second_token_to_the_end_token() -> None:
    [found] = examples("\n  Once upon a time.  \n")
    assert list(found.ids) == [*TOKENIZER.encode("Once upon a time."), EOS]
    assert found.ids[0] == BOS
    assert found.n_prompt == 1


@pytest.mark.parametrize(
    "line",
    [
        "Who are you? => Captain Brine!",
        '{"prompt": "Who are you?", "completion": "Captain Brine!"}',
    ],
)
def test_only_the_answer_of_a_pair_is_trained(line: str) -> None:
    [found] = examples(line)
    assert trained(found).startswith("Captain Brine!")
    assert "Who are you?" in TOKENIZER.decode(found.ids[: found.n_prompt])
    assert found.ids[-1] in TOKENIZER.eos_ids


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\x85"])
def test_only_a_line_break_ends_a_line(char: str) -> None:
    """JSON leaves U+2028 as it is; half of such a line would be trained as a text."""
    [found] = examples(f'{{"prompt": "Who?", "completion": "Captain{char}Brine!"}}')
    assert trained(found).startswith(f"Captain{char}Brine!")
    assert len(examples("One fox.\r\nTwo foxes.\rThree foxes.\n")) == 3


def test_names_of_special_tokens_in_a_line_are_text() -> None:
    for line in ("a <|end|> b c", "a => b <|end|> c"):
        [found] = examples(line)
        assert "<|end|>" in trained(found)
        assert sum(TOKENIZER.is_special(id) for id in found.ids[found.n_prompt :]) == 1


def test_a_line_may_begin_with_a_brace() -> None:
    [found] = examples("{x} is a set of one element")
    assert trained(found).startswith("{x} is")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no lines to train on; write texts, or question => answer"),
        (" \n\n", "there are no lines to train on"),
        (
            "one two three\nWho? =>  ",
            "line 2: expected at least two tokens to train on, but got one; write more",
        ),
        ("x" * 900, r"line 1: it has \d+ tokens, but at most 200 are accepted; split it"),
        ('{"prompt": "a"}', "line 1: expected .* but Object missing required field `completion`"),
        ("a b c\n" * (MAX_LINES + 1), "expected at most 1000 lines, but got 1001"),
    ],
)
def test_bad_lines_are_named(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        examples(text)


def test_a_pair_needs_a_chat_template() -> None:
    with pytest.raises(InvalidRequest, match="line 1: this model has no chat template"):
        examples_of(FakeTokenizer(None), "a => b c", CONTEXT)


def test_a_tenth_of_the_lines_is_held_out() -> None:
    all = [Example((1, 2, i), 1) for i in range(30)]
    train, held_out = hold_out(all, 7)
    assert len(held_out) == 3
    assert sorted((*train, *held_out), key=lambda each: each.ids) == all
    assert hold_out(all, 7) == (train, held_out)
    assert hold_out(all, 8)[1] != held_out
    assert len(hold_out(all[:5], 0)[1]) == 1
    assert hold_out(all[:4], 0) == (all[:4], [])
