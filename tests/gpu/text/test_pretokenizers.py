"""Pretokenizers split texts into words as the tokenizers they are named after.

gpt-2, llama-bpe, qwen2, qwen35, mpt, command-r, starcoder, refact, deepseek-llm and deepseek-coder
were compared with the ids that llama.cpp stores beside those vocabularies
(models/ggml-vocab-*.gguf.out), 46 to 50 texts each; the vocabularies are too large to include here.
"""

from __future__ import annotations

import pytest
from tokenizers import pre_tokenizers

from gpu.text.pretokenizers import PRETOKENIZERS

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
"""Texts by pretokenizer name, with a bar at every split."""


def test_every_pretokenizer_is_tested() -> None:
    assert sorted(name for names in CUT for name in names.split()) == sorted(PRETOKENIZERS)


@pytest.mark.parametrize("name", PRETOKENIZERS)
def test_texts_are_split_into_words(name: str) -> None:
    (expected,) = (cut for names, cut in CUT.items() if name in names.split())
    cutter = pre_tokenizers.Sequence(PRETOKENIZERS[name].steps())
    words = [TEXT[start:end] for _, (start, end) in cutter.pre_tokenize_str(TEXT)]
    assert "|".join(words) == expected


def test_other_settings_of_pretokenizers() -> None:
    assert {name for name, words in PRETOKENIZERS.items() if words.begins} == {
        name for name, words in PRETOKENIZERS.items() if words.whole_words
    }
    assert PRETOKENIZERS["llama-bpe"].begins
    assert PRETOKENIZERS["tekken"].whole_words
    assert PRETOKENIZERS["qwen2"].composed
    assert not PRETOKENIZERS["qwen35"].composed
    assert not PRETOKENIZERS["gpt-2"].begins
