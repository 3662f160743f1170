"""Conversion of the tokenizer in a GGUF file's metadata to the `tokenizers` library.

Two models are supported: "gpt2", byte-level BPE with merges, whose pretokenizer is named by
`tokenizer.ggml.pre`; and "llama", SentencePiece's BPE, which merges by the pieces' scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from gpu.errors import ModelError
from gpu.files.json_object import JsonObject, shown
from gpu.gguf.file import open_gguf
from gpu.text.added_tokens import MUST_EXIST, begin_with, mark_special
from gpu.text.folder import TokenizerFiles, choose_templates
from gpu.text.pretokenizers import PRETOKENIZERS
from gpu.text.sentence_piece import (
    CONTROL,
    SPACE,
    UNKNOWN,
    USER_DEFINED,
    SentencePieces,
    make_backend,
)

TEMPLATE = "tokenizer.chat_template"
"""The default chat template; others are at TEMPLATE.NAME."""
ROLE_KEYS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
"""Roles of special tokens, and their names in keys of GGUF (with its spelling)."""


def read_tokenizer(path: Path) -> TokenizerFiles:
    """Return the tokenizer of a GGUF file. Raises ModelError for an unsupported or damaged one."""
    file = open_gguf(path)
    meta = JsonObject(f"{file.path}: metadata", dict(file.values))
    kind = meta.choice("tokenizer.ggml.model", ("gpt2", "llama"))
    tokens = _strings(meta, "tokenizer.ggml.tokens")
    vocab = {token: id for id, token in enumerate(tokens)}
    if not tokens or len(vocab) != len(tokens):
        raise meta.error("tokenizer.ggml.tokens", "a list of tokens, each once")
    types = _types(meta, len(tokens))
    try:
        if kind == "llama":
            made = make_backend(_sentence_pieces(meta, tokens, types), meta.where)
        else:
            made = _byte_level(meta, vocab)
            kinds = list(zip(tokens, types, strict=True))
            plain = [AddedToken(token, normalized=False) for token, k in kinds if k == USER_DEFINED]
            made.add_tokens(plain)
            made.add_special_tokens([token for token, k in kinds if k in (CONTROL, UNKNOWN)])
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{meta.where}: not a usable tokenizer: {error}") from None
    named = _special_tokens(meta, tokens)
    mark_special(made, [AddedToken(named[role]) for role in MUST_EXIST if role in named])
    if "bos_token" in named and meta.boolean("tokenizer.ggml.add_bos_token", _begins(meta, kind)):
        begin_with(made, named["bos_token"])
    return TokenizerFiles(made, named, str(path), *choose_templates(_chat_templates(meta)))


def _byte_level(meta: JsonObject, vocab: dict[str, int]) -> tokenizers.Tokenizer:
    merges = []
    for merge in _strings(meta, "tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not space or left not in vocab or right not in vocab:
            raise ModelError(
                f"{meta.where}: tokenizer.ggml.merges has {shown(merge)}; expected two tokens "
                "separated by a space"
            )
        merges.append((left, right))
    words = PRETOKENIZERS[meta.choice("tokenizer.ggml.pre", tuple(PRETOKENIZERS), "default")]
    made = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, ignore_merges=words.whole_words)
    )
    if words.composed:
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(words.steps())
    made.decoder = decoders.ByteLevel()
    return made


def _sentence_pieces(
    meta: JsonObject, tokens: Sequence[str], types: Sequence[int]
) -> SentencePieces:
    scores = meta.get("tokenizer.ggml.scores")
    if not hasattr(scores, "dtype") or len(scores) != len(tokens):
        raise meta.error("tokenizer.ggml.scores", f"{len(tokens)} numbers, one for each token")
    prefixed = meta.boolean("tokenizer.ggml.add_space_prefix", True)
    texts = list(tokens)
    for id, (text, type) in enumerate(zip(tokens, types, strict=True)):
        if type == USER_DEFINED and not text.strip(" ") and not prefixed:
            texts[id] = SPACE * len(text)  # as in Gemma's own files: a "▁" of the text counts too
    return SentencePieces(texts, scores.tolist(), types, add_prefix=prefixed)


def _special_tokens(meta: JsonObject, tokens: Sequence[str]) -> dict[str, str]:
    """Return the texts of the special tokens by their names in tokenizer_config.json."""
    keys = {name: f"tokenizer.ggml.{key}_token_id" for name, key in ROLE_KEYS.items()}
    return {
        name: tokens[meta.integer(key, 0, len(tokens) - 1)]
        for name, key in keys.items()
        if key in meta
    }


def _begins(meta: JsonObject, kind: str) -> bool:
    """Return whether texts begin with the beginning-of-sequence token if the file does not say."""
    if kind == "llama":
        return True
    return PRETOKENIZERS[meta.choice("tokenizer.ggml.pre", tuple(PRETOKENIZERS), "default")].begins


def _chat_templates(meta: JsonObject) -> dict[str, str]:
    """Return the chat templates by name."""
    found = {"default": meta.string(TEMPLATE)} if TEMPLATE in meta else {}
    names = [key for key in meta.values if key.startswith(f"{TEMPLATE}.")]
    return found | {key.removeprefix(f"{TEMPLATE}."): meta.string(key) for key in names}


def _strings(meta: JsonObject, key: str) -> list[str]:
    value = meta.get(key)
    if not isinstance(value, list):
        raise meta.error(key, "a list of strings")
    return value


def _types(meta: JsonObject, n: int) -> list[int]:
    value = meta.get("tokenizer.ggml.token_type")
    if value is None:
        return [1] * n
    if not hasattr(value, "dtype") or value.dtype.kind not in "iu" or len(value) != n:
        raise meta.error("tokenizer.ggml.token_type", f"{n} numbers, one for each token")
    return [int(type) for type in value]
