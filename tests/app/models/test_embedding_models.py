"""The embedding model of --embedding-model: named, or a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config import Settings, SettingsError
from app.models import embedding_models
from app.models.embedding_models import find_embedding_model
from app.prompt.limited_tokenizer import LimitedTokenizer
from gpu import ModelError
from tests.app.models.encoder_folders import write_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def test_a_folder_is_found_with_its_tokenizer(folder: Path) -> None:
    found = find_embedding_model(Settings(embedding_model=str(folder)))
    assert found is not None
    assert found.path == folder
    assert isinstance(found.texts.tokenizer, LimitedTokenizer)
    try:
        texts = ["the cat", "", "cat [SEP] cat cat cat cat"]
        assert found.texts.encode(texts, "", 6) == [
            [2, 4, 5, 3], [2, 3], [2, 5, 3, 5, 5, 3],
        ]  # fmt: skip
        assert found.texts.encode(["cat"], "query: ", 6) == [[2, 6, 7, 5, 3]]
    finally:
        found.texts.tokenizer.close()


def test_a_name_is_that_of_a_wheel_in_any_letters(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    asked = []
    monkeypatch.setattr(
        embedding_models, "fetch_wheel_model", lambda name, *_: asked.append(name) or folder
    )
    for name in ("all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v2"):
        found = find_embedding_model(Settings(embedding_model=name))
        assert found is not None
        found.texts.tokenizer.close()  # type: ignore[attr-defined]
    assert asked == ["all-MiniLM-L6-v2"] * 2


def test_what_is_no_encoder_is_refused(tmp_path: Path) -> None:
    assert find_embedding_model(Settings()) is None
    with pytest.raises(ModelError, match=r"there is no folder 'BAAI/bge'; .*hf download"):
        find_embedding_model(Settings(embedding_model="BAAI/bge"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="'llama' is not supported; supported: bert"):
        find_embedding_model(Settings(embedding_model=str(tmp_path)))


@pytest.mark.parametrize("other", [{"upstream": "http://localhost:1"}, {"ray": "local"}])
def test_it_needs_an_engine_on_this_machine(other: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="--embedding-model"):
        Settings(embedding_model="all-MiniLM-L6-v2", **other).validate()  # type: ignore[arg-type]
