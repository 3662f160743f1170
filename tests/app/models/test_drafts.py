"""Draft models: found as models are, and used only with a model of the same tokens."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from app.config import Settings, SettingsError
from app.engine.loading import load_engine
from app.models.drafts import check_draft, find_draft
from app.models.model_source import ModelSource
from app.prompt.limited_tokenizer import load_tokenizer
from app.tale import draft_dir, mixture_dir, model_dir
from gpu import Engine, LoadOptions, ModelError
from tests.gpu.models import random_llama


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[LoadOptions]:
    """The options of the engines that are loaded."""
    options: list[LoadOptions] = []
    monkeypatch.setattr(Engine, "load", lambda path, each, **more: options.append(each))
    return options


def load(model: Path, draft: str) -> None:
    settings = Settings(model=str(model), draft=draft)
    tokenizer = None if model == model_dir() else load_tokenizer(model)
    source = ModelSource(model, tokenizer=tokenizer)
    load_engine(settings, source, lambda done, message: None, draft=find_draft(settings))


def test_no_draft_model_is_the_default() -> None:
    assert find_draft(Settings()) is None


def test_a_draft_model_of_the_same_tokens_is_used(loaded: list[LoadOptions]) -> None:
    load(model_dir(), str(model_dir()))
    draft = find_draft(Settings(draft=str(model_dir())))
    assert draft is not None
    assert loaded[0].draft == draft.path == model_dir()
    assert draft.n_bytes > 6_000_000


def test_a_draft_model_of_other_tokens_is_refused_at_the_start_and_left_out_later(
    loaded: list[LoadOptions], caplog: pytest.LogCaptureFixture
) -> None:
    """Later: when the page changes the model."""
    other = random_llama.folder("tiny")
    draft = find_draft(Settings(draft=str(other)))
    assert draft is not None
    with pytest.raises(ModelError, match="a draft model must share the model's tokenizer"):
        check_draft(draft, model_dir(), load_tokenizer(model_dir()))
    with caplog.at_level(logging.WARNING):
        load(model_dir(), str(other))
    assert loaded[0].draft is None
    assert "served without a draft model" in caplog.text


def test_the_bundled_draft_model_is_for_the_bundled_models_alone(
    loaded: list[LoadOptions], tmp_path: Path
) -> None:
    draft = find_draft(Settings(draft="bundled"))
    assert draft is not None
    load(model_dir(), "bundled")
    assert loaded[0].draft == draft.path == draft_dir()
    check_draft(draft, mixture_dir(), load_tokenizer(mixture_dir()))
    with pytest.raises(ModelError, match="for the bundled models only"):
        check_draft(draft, tmp_path, load_tokenizer(model_dir()))


def test_a_draft_model_that_is_not_there_is_named() -> None:
    with pytest.raises(ModelError, match="'nowhere'"):
        find_draft(Settings(draft="nowhere"))


def test_two_ways_of_drafting_are_refused() -> None:
    with pytest.raises(SettingsError, match="leave one out"):
        Settings(draft="small", spec_type="ngram").validate()
