"""Trains the small tokenizers that *Tokens* compares, one of each family, all on the texts in
`corpus/` and with vocabularies of the same size.

python -m tests.tokenizers.train
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

from tests.serving import ROOT

CORPUS = Path(__file__).parent / "corpus"
FOLDER = ROOT / "static/tokenizers"
"""The page fetches the files from here."""
VOCAB_SIZE = 2000
UNKNOWN = "<unk>"


def corpus() -> list[str]:
    """Return the lines of all texts."""
    texts = [path.read_text("utf-8") for path in sorted(CORPUS.glob("*.txt"))]
    return [line for text in texts for line in text.splitlines(keepends=True)]


def byte_level_bpe() -> Tokenizer:
    """As GPT-2: merges of bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def sentencepiece_bpe() -> Tokenizer:
    """As Llama 2: merges of characters, with "▁" for a space, and bytes for characters that the
    corpus does not have."""
    pieces = [UNKNOWN, *(f"<0x{byte:02X}>" for byte in range(256))]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = BpeTrainer(vocab_size=VOCAB_SIZE - len(pieces), show_progress=False)
    trained.train_from_iterator(corpus(), trainer)
    found = json.loads(trained.to_str())["model"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: id for id, piece in enumerate([*pieces, *found["vocab"]])},
            merges=[(left, right) for left, right in found["merges"]],
            unk_token=UNKNOWN,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """As T5: pieces with probabilities, of which a word takes the likeliest path."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = UnigramTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[UNKNOWN],
        unk_token=UNKNOWN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT: the longest piece first; "##" begins pieces inside a word, and spaces are lost."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = WordPieceTrainer(vocab_size=VOCAB_SIZE, special_tokens=[UNKNOWN], show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte-level-bpe": byte_level_bpe,
    "sentencepiece-bpe": sentencepiece_bpe,
    "unigram": unigram,
    "wordpiece": word_piece,
}


def content(tokenizer: Tokenizer) -> str:
    """Return the tokenizer as a small tokenizer.json."""
    found: dict[str, Any] = json.loads(tokenizer.to_str())
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, make in FAMILIES.items():
        (FOLDER / f"{name}.json").write_text(content(make()), "utf-8")
