"""A config that says that the output head is the embedding, beside a file with a head of its own:
the numbers are those of transformers, which ties only what is equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gpu import Engine, LoadOptions
from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.open_model import open_model, with_own_head
from gpu.checkpoint.reader import Checkpoint
from gpu.errors import ModelError
from tests.gpu.models import random_models
from tests.gpu.models.logit_checks import OF_THE_LARGEST_LOGIT
from tests.gpu.models.model_cases import CASES

RUNS = (
    ("qwen3_window_tied", "wgpu"),
    ("qwen3_window_tied", "torch"),
    ("gemma2", "wgpu"),
    ("gpt2", "wgpu"),
)
"""Cases of architectures, and backends. GPT-2's head has another first word than its embedding."""
HEAD = "lm_head.weight"


def write(folder: Path, kind: str) -> dict[str, Any]:
    """Write a tied model. Returns its tensors."""
    name = next(name for name in CASES if name.startswith(kind))
    case = CASES[name]
    random_models.write(
        folder, replace(case, settings=case.settings | {"tie_word_embeddings": True})
    )
    return load_file(folder / "model.safetensors")


def embedding_of(tensors: dict[str, Any]) -> Any:
    ends = ("embed_tokens.weight", "wte.weight")
    return next(tensor for name, tensor in tensors.items() if name.endswith(ends))


def save(folder: Path, tensors: dict[str, Any], head: Any) -> None:
    save_file({**tensors, HEAD: head}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.ci
@pytest.mark.parametrize(("kind", "backend"), RUNS)
def test_a_trained_head_is_used(tmp_path: Path, kind: str, backend: str) -> None:
    tensors = write(tmp_path, kind)
    embedding = embedding_of(tensors)
    save(tmp_path, tensors, torch.roll(embedding, 1, 0).contiguous())
    ids = random_models.ids(12)
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
        want = model(torch.tensor([ids])).logits[0].numpy()
    engine = Engine.load(tmp_path, LoadOptions(dtype="f32", backend=backend))
    try:
        error = np.abs(engine.logits(ids) - want).max() / np.abs(want).max()
        assert error < OF_THE_LARGEST_LOGIT
        assert engine.info.model.parameters == model.num_parameters()
    finally:
        engine.close()


def test_equal_numbers_are_tied(tmp_path: Path) -> None:
    """In any dtype, and they are counted once."""
    tensors = write(tmp_path, "qwen3_window_tied")
    n = open_model(tmp_path)[1].parameters()
    half = {name: t.bfloat16() if t is embedding_of(tensors) else t for name, t in tensors.items()}
    copy = embedding_of(half).clone()
    for head in (copy, copy.float()):
        save(tmp_path, half, head)
        config, checkpoint = open_model(tmp_path)
        assert config.tie_embeddings
        assert checkpoint.parameters(True) == Inventory.from_folder(tmp_path).parameters == n
    copy[-1, -1] += 1
    for head in (copy, copy.float()):
        save(tmp_path, half, head)
        assert not open_model(tmp_path)[0].tie_embeddings
        assert Inventory.from_folder(tmp_path).parameters == n + copy.numel()


@pytest.mark.parametrize("kind", ["qwen3_window_tied", "gpt2"])
def test_a_head_without_the_embedding_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    tensors = write(tmp_path, kind)
    embedding = embedding_of(tensors)
    others = {name: tensor for name, tensor in tensors.items() if tensor is not embedding}
    save(tmp_path, others, embedding)
    with pytest.raises(ModelError, match=rf"saved with {HEAD} alone.*save_pretrained"):
        open_model(tmp_path)


def test_the_head_is_used_where_only_shapes_are_known(tmp_path: Path) -> None:
    """As in a browser, which makes the weights of a hub's files: equal or not, its numbers are
    right."""
    tensors = write(tmp_path, "qwen3_window_tied")
    config, _ = open_model(tmp_path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert with_own_head(config, Checkpoint.of_shapes(tmp_path, shapes)).tie_embeddings
    shapes[HEAD] = tuple(embedding_of(tensors).shape)
    assert not with_own_head(config, Checkpoint.of_shapes(tmp_path, shapes)).tie_embeddings
