"""The metadata of a GGUF file as config.json, so that one reader checks both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpu.architectures import gguf_architecture
from gpu.files.json_object import JsonObject
from gpu.gguf.file import open_gguf
from gpu.gguf.metadata import Metadata

EOG_TOKENS = frozenset((
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<EOT>", "_<EOT>", "<end_of_utterance>",
))  # fmt: skip
"""Tokens that end a turn, which llama.cpp recognises by their text (src/llama-vocab.cpp)."""
SPECIAL_TOKEN_TYPES = (3, 4)
"""Values of `tokenizer.ggml.token_type`: control and user-defined tokens."""


def gguf_config(path: str | Path) -> JsonObject:
    """Return the config.json of a GGUF file. Raises ModelError for what it cannot express."""
    file = open_gguf(path)
    architecture, gguf = gguf_architecture(file)
    meta = Metadata(file)
    vocab_size = meta.shape("token_embd.weight", 2)[0]
    if not meta.boolean("attention.causal", True):
        raise meta.error("attention.causal", "true: the engine writes text")
    if meta.number("attention.clamp_kqv", 0.0, 1e9, 0.0):
        raise meta.error("attention.clamp_kqv", "0, the only value supported")
    values: dict[str, Any] = {
        "model_type": architecture.model_type,
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
        "eos_token_id": _eog_token_ids(meta.all, vocab_size),
        **gguf.read(meta),
    }
    keys = architecture.config_keys
    config = {keys.get(key, key): value for key, value in values.items() if value is not None}
    return JsonObject(meta.all.where, config)


def _eog_token_ids(meta: JsonObject, vocab_size: int) -> list[int]:
    """Return the ids that end a text or a turn: those the file names, then special tokens in
    `EOG_TOKENS`. Most files name only one, often not the one that ends a turn."""
    keys = (f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))
    found = [meta.integer(key, 0, vocab_size - 1) for key in keys if key in meta]
    tokens, types = (meta.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    if isinstance(tokens, list) and len(np.atleast_1d(types)) == len(tokens):
        known = (id for id, token in enumerate(tokens[:vocab_size]) if token in EOG_TOKENS)
        found += [id for id in known if types[id] in SPECIAL_TOKEN_TYPES]
    return list(dict.fromkeys(found))
