"""The metadata of a GGUF file as the config.json that a folder of the same model would have, so
that one place judges both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpu.gguf.architectures import architecture
from gpu.gguf.file import open_gguf
from gpu.gguf.metadata import Metadata
from gpu.json_object import JsonObject

ENDS = frozenset((
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<EOT>", "_<EOT>", "<end_of_utterance>",
))  # fmt: skip
"""Tokens that llama.cpp knows by their text to end a turn (src/llama-vocab.cpp)."""
SPECIAL = (3, 4)
"""Of `tokenizer.ggml.token_type`: control tokens, and those that users defined."""


def config_of(path: str | Path) -> JsonObject:
    """What config.json would say. Raises ModelError for what cannot be said there."""
    file = open_gguf(path)
    arch, meta = architecture(file), Metadata(file)
    vocab_size = meta.shape("token_embd.weight", 2)[0]
    if not meta.boolean("attention.causal", True):
        raise meta.error("attention.causal", "true: the engine writes text")
    if meta.number("attention.clamp_kqv", 0.0, 1e9, 0.0):
        raise meta.error("attention.clamp_kqv", "0, the only value supported")
    values: dict[str, Any] = {
        "model_type": arch.model_type,
        "num_hidden_layers": meta.get("block_count"),
        "num_attention_heads": meta.get("attention.head_count"),
        "num_key_value_heads": meta.get("attention.head_count_kv"),
        "head_dim": meta.get("attention.key_length"),
        "hidden_size": meta.get("embedding_length"),
        "intermediate_size": meta.get("feed_forward_length"),
        "max_position_embeddings": meta.get("context_length"),
        "rms_norm_eps": meta.get("attention.layer_norm_rms_epsilon"),
        "vocab_size": vocab_size,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": meta.all.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _ends(meta.all, vocab_size),
        **arch.read(meta),
    }
    said = {arch.renamed.get(k, k): v for k, v in values.items() if v is not None}
    return JsonObject(meta.all.where, said)


def _ends(meta: JsonObject, vocab_size: int) -> list[int]:
    """The ids that end a text or a turn: those that are named, then those of special tokens that
    are known to. Most files name one alone, often not the one that ends a turn."""
    keys = (f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))
    found = [meta.integer(key, 0, vocab_size - 1) for key in keys if key in meta]
    tokens, types = (meta.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    if isinstance(tokens, list) and len(np.atleast_1d(types)) == len(tokens):
        known = (id for id, token in enumerate(tokens[:vocab_size]) if token in ENDS)
        found += [id for id in known if types[id] in SPECIAL]
    return list(dict.fromkeys(found))
