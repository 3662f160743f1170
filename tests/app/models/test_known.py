"""Recommended models: sizes as in transformers, and the sampling settings of their cards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from app import tale
from app.config import Settings
from app.engine.loading import load_engine
from app.models.known import WHEELS, card_settings, hub_bytes
from app.models.known_configs import CONFIGS, known_shape
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
    "SmolLM2-135M-Instruct": 134_515_008,
    "gemma-3-270m": 268_098_176,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
}
"""Number of parameters on the hub's pages of these models; tied ones count once."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_transformers(name: str) -> None:
    """The model is built on the meta device, without weights."""
    given = {**CONFIGS[name], "pad_token_id": None}
    with torch.device("meta"):
        config = AutoConfig.for_model(given.pop("model_type"), **given)
        model = AutoModelForCausalLM.from_config(config)
    assert known_shape(name).parameters == model.num_parameters() == PUBLISHED[name]


def test_the_numbers_of_all_models_are_published() -> None:
    assert set(PUBLISHED) == set(CONFIGS)
    for name, wheel in WHEELS.items():
        assert wheel.parameters == known_shape(name).parameters


def test_a_matrix_that_is_saved_twice_is_fetched_twice() -> None:
    """Qwen3 0.6B has 1.5 GB of files for 0.6 billion parameters."""
    assert hub_bytes("Qwen/Qwen3-0.6B") == pytest.approx(1_503_300_328, rel=1e-4)


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
