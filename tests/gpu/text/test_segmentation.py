"""Segmentation step by step: its result is that of the `tokenizers` library, and each step is one
that the tables allow."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import tokenizers

from gpu.errors import InvalidRequest
from gpu.text.segmentation import Candidate, Merge, Segmenter
from gpu.text.tokenizer import MAX_SEGMENTED_CHARS, Tokenizer
from tests.golden import trained_models
from tests.gpu.text import made_tokenizers as made
from tests.gpu.text.multilingual import TEXTS
from tests.gpu.text.tokenizer_families import random_text

KINDS: dict[str, Callable[[], tokenizers.Tokenizer] | Path] = {
    **{model.name: model.folder for model in trained_models()},
    "byte_level": made.byte_level,
    "llama3": made.llama3,
    "byte_fallback": made.byte_fallback,
    "unigram": made.unigram,
    "unigram with bytes": made.unigram_bytes,
    "unigram without a byte": partial(made.unigram_bytes, lacking=0x9F),
    "word_piece": made.word_piece,
    "word_level": made.word_level,
}


def load(kind: str, folder: Path) -> Tokenizer:
    found = KINDS[kind]
    return Tokenizer.load(found if isinstance(found, Path) else made.save(folder, found()))


def texts() -> list[str]:
    """Return short texts of many scripts and 200 random ones, without names of special tokens."""
    rng = random.Random(11)
    whole = [text[at : at + 60] for text in TEXTS for at in range(0, len(text), 60)]
    special = ("</s>", "<s>", "<|im_", "<unk>", "[UNK]")
    every = whole + [random_text(rng) for _ in range(200)]
    return [text for text in every if not any(name in text for name in special)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_step_gives_the_ids_of_the_library(kind: str, tmp_path: Path) -> None:
    tokenizer = load(kind, tmp_path)
    for text in texts():
        ids = tokenizer.encode(text, bos=False, specials=False)
        assert [id for word in tokenizer.segment(text).words for id in word.ids] == ids, text


@pytest.mark.parametrize("kind", ["byte_level", "llama3", "byte_fallback"])
def test_each_merge_is_the_first_in_the_list_that_applies(kind: str, tmp_path: Path) -> None:
    tokenizer = load(kind, tmp_path)
    model = json.loads(tokenizer.to_json())["model"]
    ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
    names = {id: piece for piece, id in model["vocab"].items()}
    n_merges = 0
    for text in texts():
        for word in tokenizer.segment(text).words:
            pieces = [names[id] for id in word.symbols]
            for merge in word.merges:
                pairs = list(itertools.pairwise(pieces))
                known = [ranks[pair] for pair in pairs if pair in ranks]
                assert merge.rank == min(known) == ranks[pairs[merge.at]]
                assert merge.rank not in [ranks.get(pair) for pair in pairs[: merge.at]]
                pieces[merge.at : merge.at + 2] = [names[merge.id]]
                n_merges += 1
            assert not any(pair in ranks for pair in itertools.pairwise(pieces))
            assert word.ids == [model["vocab"][piece] for piece in pieces]
    assert n_merges > 100


@pytest.mark.parametrize("kind", ["unigram", "unigram with bytes"])
def test_no_other_path_through_the_lattice_is_likelier(kind: str, tmp_path: Path) -> None:
    """All paths of short words are tried."""

    def totals(lattice: list[Candidate], at: int, end: int) -> list[float]:
        if at == end:
            return [0.0]
        begun = [each for each in lattice if each.first == at]
        return [
            (each.score or 0.0) + rest for each in begun for rest in totals(lattice, each.end, end)
        ]

    tokenizer = load(kind, tmp_path)
    n_longer = 0
    for text in texts():
        for word in tokenizer.segment(text).words:
            if len(word.word) > 8:
                continue
            chosen = [each for each in word.candidates if each.best]
            assert [each.first for each in chosen] == [0, *(each.end for each in chosen[:-1])]
            total = sum(each.score or 0.0 for each in chosen)
            every = totals(word.candidates, 0, len(word.word))
            assert total == pytest.approx(max(every))
            n_longer += len(every) > 1
    assert n_longer > 20


def test_word_piece_looks_up_the_longest_first(tmp_path: Path) -> None:
    tokenizer = load("word_piece", tmp_path)
    (word,) = tokenizer.segment("cats").words
    at, tried = 0, iter(word.candidates)
    while at < 4:
        for end in range(4, at, -1):
            each = next(tried)
            assert (each.first, each.end, each.best) == (at, end, each.id is not None)
            if each.best:
                at = end
                break
    assert next(tried, None) is None
    assert [each.id for each in word.candidates if each.best] == word.ids
    assert len(word.candidates) > len(word.ids), "something was looked up in vain"


def test_an_unknown_word_of_word_piece_has_no_pieces(tmp_path: Path) -> None:
    tokenizer = load("word_piece", tmp_path)
    (word,) = tokenizer.segment("cat₿").words[-1:]
    assert [tokenizer.piece(id) for id in word.ids] == ["[UNK]"]
    assert not any(each.best for each in word.candidates)


def test_prefix_and_suffix_are_part_of_symbols_and_merges() -> None:
    """As those of `tokenizers` itself: a word-piece like prefix, and the end of a word."""
    vocab = {"h": 0, "##e": 1, "##y</w>": 2, "he": 3, "hey</w>": 4, "h</w>": 5}
    model = tokenizers.models.BPE(
        vocab=vocab,
        merges=[("h", "##e"), ("he", "##y</w>")],
        continuing_subword_prefix="##",
        end_of_word_suffix="</w>",
    )
    segmenter = Segmenter(json.loads(tokenizers.Tokenizer(model).to_str())["model"])
    for word in ("hey", "h", "he"):
        assert segmenter.steps(word).ids == [token.id for token in model.tokenize(word)]
    assert segmenter.steps("hey").merges == [Merge(0, 0, 3), Merge(1, 0, 4)]


def test_texts_that_cannot_be_shown_are_refused(tmp_path: Path) -> None:
    backend = made.byte_level()
    backend.add_tokens(["upon a"])
    tokenizer = Tokenizer.load(made.save(tmp_path, backend))
    assert tokenizer.segment("").words == []
    assert len(tokenizer.segment("x" * MAX_SEGMENTED_CHARS).words) == 1
    with pytest.raises(InvalidRequest, match="at most 100 characters, but got 101"):
        tokenizer.segment("x" * (MAX_SEGMENTED_CHARS + 1))
    with pytest.raises(InvalidRequest, match="a token that was added to the vocabulary"):
        tokenizer.segment("once upon a time")
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenizer.segment("\ud800")
