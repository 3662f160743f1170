"""Encoders with random weights in folders as sentence-transformers saves them, and the vectors that
transformers' models and sentence-transformers' pooling make of texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

from gpu.step import Floats

SIZES = {
    "vocab_size": 101,
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 77,
    "max_position_embeddings": 150,
    "type_vocab_size": 2,
}
MODES = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
MODULES = "sentence_transformers.models"


def write(
    folder: Path,
    *,
    pooling: str = "mean",
    normalize: bool = True,
    max_seq_length: int | None = None,
    prefix: str = "",
    model_type: str = "bert",
    **sizes: Any,
) -> Path:
    """Write a folder. `prefix`: what stands before the names of tensors, such as "bert."."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SIZES, **sizes})
    model = AutoModel.from_config(config, **_without_pooler(model_type))
    for parameter in model.parameters():  # biases and gains too; peaked attention in places
        torch.nn.init.normal_(parameter, std=0.2)
    tensors = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=tensors if prefix else None)
    names = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"{MODULES}.{name}"}
        for i, name in enumerate(names)
    ]
    _write(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {key: name == pooling for name, key in MODES.items()}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 60, **modes})
    if max_seq_length is not None:
        _write(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length})
    return folder


def reference(
    folder: Path, texts: Sequence[Sequence[int]], *, pooling: str = "mean", normalize: bool = True
) -> Floats:
    """Return the vectors of texts, each computed alone. Without padding, sentence-transformers'
    mean over the attention mask is the mean over all tokens."""
    model_type = AutoConfig.from_pretrained(folder).model_type
    model = AutoModel.from_pretrained(folder, **_without_pooler(model_type)).eval()
    found = []
    for ids in texts:
        with torch.no_grad():
            states = model(torch.tensor([list(ids)])).last_hidden_state[0]
        vector = states[0] if pooling == "cls" else states.mean(0)
        found.append(torch.nn.functional.normalize(vector, dim=0) if normalize else vector)
    return torch.stack(found).numpy()


@torch.no_grad()
def attention(folder: Path, ids: Sequence[int]) -> Floats:
    """Return the attention weights of a text, (n_layers, n_heads, n, n)."""
    model_type = AutoConfig.from_pretrained(folder).model_type
    model = AutoModel.from_pretrained(
        folder, attn_implementation="eager", **_without_pooler(model_type)
    ).eval()
    found = model(torch.tensor([list(ids)]), output_attentions=True).attentions
    return torch.cat(found).numpy()


def _without_pooler(model_type: str) -> dict[str, bool]:
    """Return the argument that leaves out the pooler, which sentence-transformers does not use;
    ModernBERT has none."""
    return {} if model_type == "modernbert" else {"add_pooling_layer": False}


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
