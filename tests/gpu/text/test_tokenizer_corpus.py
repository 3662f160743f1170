"""Tokenizers of every kind on texts of many scripts: ids and texts equal those of `transformers`,
and streams join to the texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from gpu.text.tokenizer import Tokenizer
from tests.gpu.text import made_tokenizers as made
from tests.gpu.text.multilingual import TEXTS
from tests.gpu.text.tokenizer_families import FAMILIES, stream

KINDS: dict[str, tuple[Callable[[], tokenizers.Tokenizer], dict[str, Any]]] = {
    **FAMILIES,
    "unigram": (made.unigram, {"bos_token": "<s>", "eos_token": "</s>"}),
    "word_piece": (made.word_piece, {"eos_token": "[SEP]"}),
    "word_level": (made.word_level, {"eos_token": "[SEP]"}),
}
WHOLE = {"byte_level", "llama3", "byte_fallback"}
"""Kinds that restore every text exactly."""


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, Tokenizer, Any]:
    """A kind's name, its tokenizer here and that of `transformers`."""
    make, config = KINDS[request.param]
    folder = made.save(tmp_path_factory.mktemp(request.param), make(), config)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    return request.param, Tokenizer.load(folder), theirs


def test_ids_are_those_of_transformers(pair: tuple[str, Tokenizer, Any]) -> None:
    _, ours, theirs = pair
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, bos=False) == ids, text


def test_texts_equal_those_of_transformers(pair: tuple[str, Tokenizer, Any]) -> None:
    name, ours, theirs = pair
    for text in TEXTS:
        ids = ours.encode(text, bos=False)
        shown = ours.decode(ids)
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert shown == expected, text
        if name in WHOLE and "▁" not in text and "</s>" not in text and "<|" not in text:
            assert shown == text


def test_streams_join_to_the_text(pair: tuple[str, Tokenizer, Any]) -> None:
    _, ours, _ = pair
    for text in TEXTS:
        ids = ours.encode(text, bos=False)
        pieces = stream(ours, [], ids)
        assert len(pieces) == len(ids) + 1
        assert "".join(pieces) == ours.decode(ids), text
        data = b"".join(map(ours.token_bytes, ids)).decode("utf-8", "replace")
        assert data.removeprefix(" " * ours.n_stripped_spaces) == ours.decode(ids), text
        for cut in range(0, len(ids), 7):
            begun = "".join(stream(ours, [], ids[:cut])[:-1])
            assert begun + "".join(stream(ours, ids[:cut], ids[cut:])) == ours.decode(ids)
