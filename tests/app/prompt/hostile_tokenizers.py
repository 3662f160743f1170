"""Generated tokenizer files that attack the process that uses them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu.text import made_tokenizers as made

BEAST = "é"
"""The character that the harmful ones wait for."""
Change = Callable[[dict[str, Any]], None]


def save(folder: Path, change: Change) -> Path:
    """Write a folder with a byte-level tokenizer.json after changing it."""
    written = json.loads(made.byte_level().to_str())
    change(written)
    (folder / "tokenizer.json").write_text(json.dumps(written), "utf-8")
    return folder


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def grows(char: str, levels: int = 9) -> Change:
    """Normalise `char` to 10 ** `levels` characters."""

    def change(written: dict[str, Any]) -> None:
        steps = [replace(char, "b" * 10), *[replace("b", "b" * 10)] * (levels - 1)]
        written["normalizer"] = {"type": "Sequence", "normalizers": steps}

    return change


def many_tokens(written: dict[str, Any]) -> None:
    """Encode one character as a million tokens."""
    grows(BEAST, 6)(written)


def quadratic(written: dict[str, Any]) -> None:
    """Look up a long word at every length from every position."""
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
    """Split with a regular expression that backtracks exponentially."""
    written["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(?:(?:x+x+)+)+y"},
        "behavior": "Isolated",
        "invert": False,
    }


def panics(written: dict[str, Any]) -> None:
    """Panic on a character map with an offset out of bounds."""
    written["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}


def decodes_hugely(written: dict[str, Any]) -> None:
    """Decode each token to ten million characters."""
    written["decoder"] = replace("a", "a" * 10**7)


def distant_id(written: dict[str, Any]) -> None:
    """Have a token with the largest possible id."""
    written["model"]["vocab"]["zzz"] = 2**32 - 1
