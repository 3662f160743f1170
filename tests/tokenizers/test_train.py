"""The tokenizers that *Tokens* compares are those that the code makes, and restore every text."""

from __future__ import annotations

import json

import pytest

from gpu.text.tokenizer import Tokenizer
from tests.gpu.text.multilingual import TEXTS
from tests.tokenizers.train import CORPUS, FAMILIES, FOLDER, VOCAB_SIZE, content, corpus

MAX_BYTES = 300_000
"""Of all files together."""


def pieces(text: str) -> set[str]:
    """Return the vocabulary of a tokenizer.json."""
    vocab = json.loads(text)["model"]["vocab"]
    return set(vocab) if isinstance(vocab, dict) else {piece for piece, _ in vocab}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_files_are_what_the_code_trains(name: str) -> None:
    """To the last byte for BPE. The trainers of the others break ties by chance."""
    kept, trained = (FOLDER / f"{name}.json").read_text("utf-8"), content(FAMILIES[name]())
    assert len(pieces(kept)) == VOCAB_SIZE
    if name.endswith("bpe"):
        assert kept == trained
    else:
        assert len(pieces(kept) & pieces(trained)) > 0.95 * VOCAB_SIZE


def test_the_files_are_small_and_there_are_no_others() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(FAMILIES)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MAX_BYTES


def test_the_corpus_has_five_languages_and_code() -> None:
    names = {path.stem for path in CORPUS.iterdir()}
    assert names == {"english", "german", "french", "spanish", "russian", "code"}
    assert sum(len(line.encode()) for line in corpus()) > 30_000


@pytest.mark.parametrize("name", ["byte-level-bpe", "sentencepiece-bpe"])
def test_every_text_survives_where_there_are_bytes(name: str) -> None:
    """But for spaces before it, of which SentencePiece adds one."""
    tokenizer = Tokenizer.load(FOLDER / f"{name}.json")
    for text in (*TEXTS, *corpus()):
        if not text.startswith(" ") and "▁" not in text and "<0x" not in text:
            assert tokenizer.decode(tokenizer.encode(text, specials=False)) == text
