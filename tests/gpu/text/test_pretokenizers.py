"""Byte-level tokenizers cut texts into words as the tokenizers they are named after do.

The ways of gpt-2, llama-bpe, qwen2, qwen35, mpt, command-r, starcoder, refact, deepseek-llm and
deepseek-coder were held to the ids that llama.cpp keeps beside those vocabularies
(models/ggml-vocab-*.gguf.out), 46 to 50 texts each; the vocabularies are too large to lie here.
"""

from __future__ import annotations

import pytest
from tokenizers import pre_tokenizers

from gpu.text.word_cutters import WORDS

TEXT = "It's 12345 o'CLOCK;\n\n  aBc e\u0301t 你好x --!\n/\r\n\tz  "
CUT = {
    "default gpt-2 phi-2 mpt olmo": (
        "It|'s| 12345| o|'|CLOCK|;|\n\n | aBc| e|\u0301|t| 你好x| --!|\n|/|\r\n|\t|z|  "
    ),
    "smollm starcoder refact command-r": (
        "It|'s| |1|2|3|4|5| o|'|CLOCK|;|\n\n | aBc| e|\u0301|t| 你好x| --!|\n|/|\r\n|\t|z|  "
    ),
    "llama-bpe llama3 llama-v3 falcon3 lfm2 dbrx smaug-bpe": (
        "It|'s| |123|45| o|'CLOCK|;\n\n| | aBc| e|\u0301t| 你好x| --!\n|/\r\n|\tz|  "
    ),
    "qwen2 deepseek-r1-qwen": (
        "It|'s| |1|2|3|4|5| o|'CLOCK|;\n\n| | aBc| e|\u0301t| 你好x| --!\n|/\r\n|\tz|  "
    ),
    "qwen35": ("It|'s| |1|2|3|4|5| o|'CLOCK|;\n\n| | aBc| e\u0301t| 你好x| --!\n|/\r\n|\tz|  "),
    "tekken": ("It|'s| |1|2|3|4|5| o|'CLOCK|;\n\n| | a|Bc| e\u0301t| 你好x| --!\n/\r\n|\tz|  "),
    "gpt-4o llama4": ("It's| |123|45| o|'CLOCK|;\n\n| | a|Bc| e\u0301t| 你好x| --!\n/\r\n|\tz|  "),
    "deepseek-llm": (
        "It|'|s| |12345| o|'|CLOCK|;|\n|\n| | aBc| e|\u0301|t| |你好|x| --!|\n|/|\r|\n|\tz|  "
    ),
    "deepseek-coder": (
        "It|'|s| |1|2|3|4|5| o|'|CLOCK|;|\n|\n| | aBc| e|\u0301|t| |你好|x| --!|\n|/|\r|\n|\tz|  "
    ),
    "deepseek-v3": ("It|'s| |123|45| o|'CLOCK|;\n\n| | aBc| e\u0301t| |你好|x| --!\n|/\r\n|\tz|  "),
}
"""By the names of the ways, with a bar at every cut."""


def test_every_way_is_here() -> None:
    assert sorted(name for names in CUT for name in names.split()) == sorted(WORDS)


@pytest.mark.parametrize("name", WORDS)
def test_words(name: str) -> None:
    (expected,) = (cut for names, cut in CUT.items() if name in names.split())
    cutter = pre_tokenizers.Sequence(WORDS[name].cutters())
    words = [TEXT[start:end] for _, (start, end) in cutter.pre_tokenize_str(TEXT)]
    assert "|".join(words) == expected


def test_what_else_a_way_says() -> None:
    assert {name for name, words in WORDS.items() if words.begins} == {
        name for name, words in WORDS.items() if words.whole_words
    }
    assert WORDS["llama-bpe"].begins
    assert WORDS["tekken"].whole_words
    assert WORDS["qwen2"].composed
    assert not WORDS["qwen35"].composed
    assert not WORDS["gpt-2"].begins
