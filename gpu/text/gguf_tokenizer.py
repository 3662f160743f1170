"""Conversion of the tokenizer in a GGUF file's metadata to the `tokenizers` library.

Two models are supported: "gpt2", byte-level BPE with merges, whose pretokenizer is named by
`tokenizer.ggml.pre`; and "llama", SentencePiece's BPE, which merges by the pieces' scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from gpu.errors import ModelError
from gpu.files.json_object import JsonObject, shown
from gpu.gguf.file import open_gguf
from gpu.text.pretokenizers import PRETOKENIZERS
from gpu.text.sentence_piece import CONTROL, UNKNOWN, USER_DEFINED, SentencePieces, make_backend


def read_tokenizer(path: str | Path) -> tuple[tokenizers.Tokenizer, JsonObject]:
    """Return the tokenizer, and the equivalent of its tokenizer_config.json. Raises ModelError for
    an unsupported or damaged one."""
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
    return made, _config(meta, kind, tokens)


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
    return SentencePieces(tokens, scores.tolist(), types, add_prefix=prefixed)


def _config(meta: JsonObject, kind: str, tokens: Sequence[str]) -> JsonObject:
    """Return `bos_token`, `eos_token`, `add_bos_token`, `chat_template` and `tool_template`."""
    values: dict[str, Any] = {}
    for name in ("bos", "eos"):
        key = f"tokenizer.ggml.{name}_token_id"
        if key in meta:
            values[f"{name}_token"] = tokens[meta.integer(key, 0, len(tokens) - 1)]
    if kind == "llama":
        by_default = True
    else:
        by_default = PRETOKENIZERS[
            meta.choice("tokenizer.ggml.pre", tuple(PRETOKENIZERS), "default")
        ].begins
    adds = meta.boolean("tokenizer.ggml.add_bos_token", by_default)
    values["add_bos_token"] = adds and "bos_token" in values
    templates = {"chat_template": "", "tool_template": ".tool_use"}
    for name, suffix in templates.items():
        if (key := f"tokenizer.chat_template{suffix}") in meta:
            values[name] = meta.string(key)
    return JsonObject(meta.where, values)


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
