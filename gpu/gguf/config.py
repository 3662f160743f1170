"""The metadata of a GGUF file as the config.json that a folder of the same model would have, so
that one place judges both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu.gguf.architectures import architecture
from gpu.gguf.file import open_gguf
from gpu.gguf.metadata import Metadata
from gpu.json_object import JsonObject


def config_of(path: str | Path) -> JsonObject:
    """What config.json would say. Raises ModelError for what cannot be said there."""
    file = open_gguf(path)
    arch, meta = architecture(file), Metadata(file)
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
        "vocab_size": meta.shape("token_embd.weight", 2)[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": meta.all.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _ends(meta.all),
        **arch.read(meta),
    }
    said = {arch.renamed.get(k, k): v for k, v in values.items() if v is not None}
    return JsonObject(meta.all.where, said)


def _ends(meta: JsonObject) -> list[Any]:
    """The ids that end a text or a turn."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (meta.get(f"tokenizer.ggml.{key}") for key in keys)
    return list(dict.fromkeys(id for id in found if id is not None))
