"""The encoder-decoder of --encoder-decoder-model: a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from app.config import Settings, SettingsError
from app.models.encoder_decoders import find_encoder_decoder
from app.models.find_model import find_model
from app.prompt.limited_tokenizer import LimitedTokenizer
from gpu import Footprint, ModelError
from tests.gpu.models import random_bert, random_t5

WORDS = ("<pad>", "</s>", "<unk>", "▁the", "▁house", "▁das", "▁Haus")


def with_tokenizer(folder: Path) -> Path:
    """Write a tokenizer as T5's."""
    tokenizer = Tokenizer(models.Unigram([(word, -1.0) for word in WORDS], unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(list(WORDS[:3]))
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", None, [("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_folder_is_found_with_its_tokenizer(tmp_path: Path) -> None:
    folder = with_tokenizer(random_t5.write(tmp_path))
    found = find_encoder_decoder(Settings(encoder_decoder_model=str(folder)))
    assert found is not None
    assert (found.path, found.n_bytes) == (folder, Footprint.of_encoder_decoder(folder).total)
    assert isinstance(found.texts.tokenizer, LimitedTokenizer)
    try:
        assert found.texts.encode(["the house", ""], "", 64) == [[3, 4, 1], [1]]
        assert found.texts.tokenizer.decode([5, 6, 1]).strip() == "das Haus"
    finally:
        found.texts.tokenizer.close()


def test_what_is_none_is_refused(tmp_path: Path) -> None:
    assert find_encoder_decoder(Settings()) is None
    with pytest.raises(ModelError, match=r"no folder 'google/flan-t5-small'; .*hf download"):
        find_encoder_decoder(Settings(encoder_decoder_model="google/flan-t5-small"))
    bert = random_bert.write(tmp_path / "bert")
    with pytest.raises(ModelError, match=r"is an encoder, .* --embedding-model"):
        find_encoder_decoder(Settings(encoder_decoder_model=str(bert)))
    t5 = with_tokenizer(random_t5.write(tmp_path / "t5"))
    with pytest.raises(ModelError, match=r"cannot chat; .* --encoder-decoder-model"):
        find_model(Settings(model=str(t5)))


@pytest.mark.parametrize("other", [{"upstream": "http://localhost:1"}, {"ray": "local"}])
def test_it_needs_an_engine_on_this_machine(other: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="--encoder-decoder-model"):
        Settings(encoder_decoder_model="t5", **other).validate()  # type: ignore[arg-type]
