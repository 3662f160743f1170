"""Recommended models: sizes as in transformers, and the sampling settings of their cards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from app import tale
from app.config import Settings
from app.engine.loading import load_engine
from app.models.known import SIZES, ModelSizes, card_settings
from app.models.model_source import ModelSource
from gpu import GenerationDefaults

PUBLISHED = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
}
"""Number of parameters on the hub's pages of these models; tied ones count once."""


@pytest.mark.parametrize(("key", "sizes"), SIZES.items(), ids=[name for name, _ in SIZES])
def test_parameters_are_those_of_transformers(key: tuple[str, str], sizes: ModelSizes) -> None:
    """The model is built on the meta device, without weights."""
    name, model_type = key
    given: dict[str, Any] = {
        "num_hidden_layers": sizes.layers,
        "hidden_size": sizes.hidden,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate_size": sizes.intermediate,
        "vocab_size": sizes.vocab,
        "tie_word_embeddings": sizes.tied,
        "pad_token_id": None,
    }
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **given))
    assert sizes.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert sizes.parameters == PUBLISHED[name]


def test_a_matrix_that_is_saved_twice_is_fetched_twice() -> None:
    """Qwen3 0.6B has 1.5 GB of files for 0.6 billion parameters."""
    assert SIZES["Qwen/Qwen3-0.6B", "qwen3"].n_bytes == pytest.approx(1_503_300_328, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", GenerationDefaults(temperature=0.2, top_p=0.9)),
        ("SmolLM2-135M-Instruct.Q4_1", GenerationDefaults(temperature=0.2, top_p=0.9)),
        ("gemma-3-270m-it-Q4_K_M", GenerationDefaults(temperature=1.0, top_k=64, top_p=0.95)),
        ("HuggingFaceTB/SmolLM2-135M", None),
        ("gemma-3-like/other", None),
        (None, None),
    ],
)
def test_known_models_have_the_settings_of_their_cards(
    name: str | None, settings: GenerationDefaults | None
) -> None:
    assert card_settings(name) == settings


def test_an_engine_gets_the_card_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("gpu.Engine.load", lambda path, options, **named: asked.update(named))
    source = ModelSource(tale.model_dir(), name="SmolLM2-135M-Instruct")
    load_engine(Settings(), source, lambda fraction, message: None)
    assert asked["card"] == GenerationDefaults(temperature=0.2, top_p=0.9)
