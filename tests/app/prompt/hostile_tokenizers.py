"""Files of tokenizers that do harm, made on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu import made_tokenizers as made

BEAST = "é"
"""The character that the harmful ones wait for."""
Change = Callable[[dict[str, Any]], None]


def save(folder: Path, change: Change) -> Path:
    """A folder with a byte-level tokenizer.json that was changed."""
    written = json.loads(made.byte_level().to_str())
    change(written)
    (folder / "tokenizer.json").write_text(json.dumps(written), "utf-8")
    return folder


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def grows(char: str, levels: int = 9) -> Change:
    """`char` becomes 10 ** `levels` characters."""

    def change(written: dict[str, Any]) -> None:
        steps = [replace(char, "b" * 10), *[replace("b", "b" * 10)] * (levels - 1)]
        written["normalizer"] = {"type": "Sequence", "normalizers": steps}

    return change


def many_tokens(written: dict[str, Any]) -> None:
    """A character becomes a million tokens."""
    grows(BEAST, 6)(written)


def quadratic(written: dict[str, Any]) -> None:
    """A long word is looked up at every length from every place."""
    vocab = {"[UNK]": 0, "a": 1, "##a": 2}
    written["pre_tokenizer"] = None
    written["added_tokens"] = []
    written["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": False}
    written["model"] = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 10**9,
        "vocab": vocab,
    }


def backtracks(written: dict[str, Any]) -> None:
    """A regular expression that tries every way to cut a word."""
    written["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(?:(?:x+x+)+)+y"},
        "behavior": "Isolated",
        "invert": False,
    }


def panics(written: dict[str, Any]) -> None:
    """A table of characters that points out of itself."""
    written["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}


def decodes_hugely(written: dict[str, Any]) -> None:
    """Tokens that add ten million characters each to a text."""
    written["decoder"] = replace("a", "a" * 10**7)


def distant_id(written: dict[str, Any]) -> None:
    """A token whose id is as great as can be."""
    written["model"]["vocab"]["zzz"] = 2**32 - 1
