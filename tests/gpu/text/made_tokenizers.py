"""Small tokenizers of every family, trained by the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordLevelTrainer, WordPieceTrainer

CORPUS = [
    "Once upon a time there was a little cat who liked to sit in the sun.",
    "The cat said: «Привет, мир!» and 你好世界 and こんにちは, then slept — naïve café.",
    "Emoji: 🙂 🙂 👩‍👩‍👧 🇩🇪 ok? Numbers 1234567890 and\ttabs\r\nand lines.\n\n",
] * 3
SPECIALS = ("<|begin|>", "<|im_start|>", "<|im_end|>")


def byte_level(vocab_size: int = 400, specials: tuple[str, ...] = SPECIALS) -> tokenizers.Tokenizer:
    """Return a GPT-2 style tokenizer: every byte has a token. `vocab_size` is at least 256 +
    len(specials)."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def llama3() -> tokenizers.Tokenizer:
    """Return a tokenizer built as Llama 3's: its own pattern, words in the vocabulary taken whole
    before any merge (`ignore_merges`), and the end of a turn in that vocabulary."""
    model = json.loads(byte_level(500, specials=()).to_str())["model"]
    vocab = {**model["vocab"], "<|eot_id|>": len(model["vocab"])}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    begin = "<|begin_of_text|>"
    template = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), template])
    return tokenizer


def ascii_level(specials: tuple[str, ...] = SPECIALS) -> tokenizers.Tokenizer:
    """Return a GPT-2 style tokenizer with only printable ASCII without lower-case letters: 72
    tokens, for models with a vocabulary under 256."""
    alphabet = sorted(c for c in map(chr, range(0x21, 0x7F)) if not c.islower())
    vocab = {piece: id for id, piece in enumerate([*specials, "Ġ", *alphabet])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def byte_fallback(n_merges: int = 60) -> tokenizers.Tokenizer:
    """Return a Llama 2 style tokenizer: "▁" for a space, bytes for text outside the vocabulary."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    ascii_only = ["".join(c for c in text if c.isascii() and c.isprintable()) for text in CORPUS]
    trained.train_from_iterator(
        ascii_only, BpeTrainer(vocab_size=60 + n_merges, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    if "▁" not in pieces:
        pieces.append("▁")
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: id for id, piece in enumerate(pieces)},
            merges=[tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")]
    )
    return tokenizer


def unigram(vocab_size: int = 160) -> tokenizers.Tokenizer:
    """Return a Unigram tokenizer as T5's: pieces with scores, no bytes."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    specials = ["<unk>", "<s>", "</s>"]
    trainer = UnigramTrainer(
        vocab_size=vocab_size, special_tokens=specials, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def unigram_bytes(lacking: int | None = None) -> tokenizers.Tokenizer:
    """Return a Unigram tokenizer with the bytes of text outside the vocabulary, but for the byte
    `lacking`."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0)]
    pieces += [(f"<0x{byte:02X}>", -9.0) for byte in range(256) if byte != lacking]
    pieces += [("▁", -2.0), ("▁the", -3.0), ("▁cat", -3.5), ("日", -5.0)]
    pieces += [(chr(code), -6.0) for code in range(ord("a"), ord("z") + 1)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, 0, True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "</s>")])
    return tokenizer


def word_piece(vocab_size: int = 200) -> tokenizers.Tokenizer:
    """Return a BERT style tokenizer: "##" before tokens that continue a word."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = WordPieceTrainer(vocab_size=vocab_size, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_level() -> tokenizers.Tokenizer:
    """Return a tokenizer of whole words without a decoder."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = ["[UNK]", "[SEP]"]
    trainer = WordLevelTrainer(special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def save(
    folder: Path, tokenizer: tokenizers.Tokenizer, config: dict[str, Any] | None = None
) -> Path:
    """Write tokenizer.json, and tokenizer_config.json if there is a `config`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
