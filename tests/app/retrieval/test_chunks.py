"""Chunks cover their document, fit into the embedding model, and have the same tokens alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app import tale
from app.prompt.encoder_texts import EncoderTexts
from app.retrieval import chunks as chunking
from app.retrieval.chunks import (
    MAX_TOKEN_CHARS,
    ChunkSettings,
    chunks_of,
    document_prompt,
    query_prompt,
    room_for_text,
)
from gpu import InvalidRequest, SentenceConfig, TextChunk, Tokenizer
from tests.app.fake_encoder import TEXTS, EncoderTokenizer
from tests.app.fake_tokenizer import STORY
from tests.gpu.text import made_tokenizers

BPE = EncoderTexts(Tokenizer.load(tale.model_dir()), SentenceConfig())
"""Texts of a byte-level vocabulary, in which a blank belongs to the word after it."""
PIECES = ["Once", "upon", "lamp", "quixotic", "naïve", "🦊", "東京", "x" * 30, "\n\n", "a, b", "\t"]


def n_tokens(text: str, texts: EncoderTexts = TEXTS) -> int:
    [encoding] = texts.tokenizer.encode_batch([TextChunk(text)])
    return len(encoding.ids)


@given(
    words=st.lists(st.sampled_from(PIECES), max_size=60),
    size=st.integers(4, 40),
    share=st.floats(0, 0.5),
)
@settings(max_examples=200, deadline=None)
def test_chunks_cover_the_text_and_fit(words: list[str], size: int, share: float) -> None:
    text, asked = " ".join(words), ChunkSettings(size, int(share * size))
    covered = 0
    for chunk in chunks_of(BPE, text, asked, 10_000, has_pages=False):
        assert text[chunk.start :].startswith(chunk.text)
        assert 1 <= chunk.tokens <= size
        assert chunk.start <= covered, "nothing is left out"
        assert chunk.start + len(chunk.text) > covered, "each chunk adds something"
        covered = chunk.start + len(chunk.text)
    assert covered == len(text)


def test_a_chunk_has_the_same_tokens_alone() -> None:
    chunks = chunks_of(
        BPE, STORY.replace("✨", "").replace("🦊", ""), ChunkSettings(30, 7), 1000, has_pages=False
    )
    assert len(chunks) > 10
    assert [n_tokens(chunk.text, BPE) for chunk in chunks] == [chunk.tokens for chunk in chunks]


def test_chunks_begin_between_words_and_overlap() -> None:
    [first, second, *_] = chunks = chunks_of(
        TEXTS, STORY, ChunkSettings(20, 5), 1000, has_pages=False
    )
    shared = first.start + len(first.text) - second.start
    assert 0 < n_tokens(STORY[second.start : second.start + shared]) <= 5
    starts = [chunk.start for chunk in chunks[1:]]
    assert all(STORY[at].isspace() or STORY[at - 1].isspace() for at in starts)


def test_chunks_of_a_text_without_blanks_overlap() -> None:
    """As Chinese and Japanese are written."""
    text = "東京は日本の首都で、人口はとても多い。" * 20
    [first, second, *_] = chunks_of(BPE, text, ChunkSettings(60, 16), 1000, has_pages=False)
    shared = first.start + len(first.text) - second.start
    assert 0 < n_tokens(text[second.start :][:shared], BPE) <= 16
    [_, apart, *_] = chunks_of(BPE, text, ChunkSettings(60, 0), 1000, has_pages=False)
    assert apart.start == first.start + len(first.text)


def test_a_text_of_which_the_model_reads_nothing_is_refused(tmp_path: Path) -> None:
    """BERT's normalizer drops characters without a width, and U+FFFD."""
    saved = made_tokenizers.save(tmp_path, made_tokenizers.word_piece())
    texts = EncoderTexts(Tokenizer.load(saved), SentenceConfig())
    with pytest.raises(InvalidRequest, match="can read no character of this document"):
        chunks_of(texts, "\u200b\ufffd", ChunkSettings(8, 0), 10, has_pages=False)


def test_the_place_where_a_long_text_is_cut_for_the_tokenizer_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = chunks_of(BPE, STORY * 3, ChunkSettings(20, 2), 1000, has_pages=False)
    monkeypatch.setattr(chunking, "PIECE_CHARS", 50)
    pieces = chunks_of(BPE, STORY * 3, ChunkSettings(20, 2), 1000, has_pages=False)
    assert pieces == whole


@pytest.mark.parametrize("texts", [TEXTS, BPE], ids=["words", "BPE"])
def test_the_page_of_a_chunk_is_that_of_its_first_word(texts: EncoderTexts) -> None:
    """In a byte-level vocabulary a chunk may begin with the page break."""
    text = "one two three four five six\fseven eight nine ten"
    breaks = 0
    for size in range(4, 31):
        for chunk in chunks_of(texts, text, ChunkSettings(size, 0), 1000, has_pages=True):
            first = chunk.start + len(chunk.text) - len(chunk.text.lstrip())
            assert chunk.page == 1 + text[:first].count("\f")
            assert "\f" not in chunk.text
            breaks += text[chunk.start] == "\f"
    assert texts is TEXTS or breaks > 0


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (ChunkSettings(11, 0), "expected 4 to 10 tokens for a chunk"),
        (ChunkSettings(3, 0), "but got 3"),
        (ChunkSettings(10, 6), "expected an overlap of 0 to 5 tokens, half a chunk, but got 6"),
        (ChunkSettings(10, -1), "but got -1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(asked: ChunkSettings, says: str) -> None:
    assert room_for_text(TEXTS, 12) == 10
    ChunkSettings(10, 5).validate(10)
    with pytest.raises(InvalidRequest) as caught:
        asked.validate(10)
    assert says in str(caught.value)


def test_too_many_chunks_are_refused() -> None:
    n = len(chunks_of(TEXTS, STORY, ChunkSettings(20, 5), 1000, has_pages=False))
    assert len(chunks_of(TEXTS, STORY, ChunkSettings(20, 5), n, has_pages=False)) == n
    for most in (n - 1, 3):  # after it was cut, and before
        with pytest.raises(InvalidRequest, match="larger chunks"):
            chunks_of(TEXTS, STORY, ChunkSettings(20, 5), most, has_pages=False)


def test_prompts_are_those_of_sentence_transformers() -> None:
    prompts = {"query": "find ", "passage": "text "}
    texts = EncoderTexts(EncoderTokenizer(), SentenceConfig(prompts=prompts))
    assert (query_prompt(texts), document_prompt(texts)) == ("find ", "text ")
    assert room_for_text(texts, 12) == 10 - n_tokens("text ")
    plain = EncoderTexts(EncoderTokenizer(), SentenceConfig())
    assert (query_prompt(plain), document_prompt(plain)) == ("", "")


def test_a_word_without_end_makes_chunks_that_have_one(tmp_path: Path) -> None:
    """WordPiece reads it as one unknown token, however long it is."""
    texts = EncoderTexts(
        Tokenizer.load(made_tokenizers.save(tmp_path, made_tokenizers.word_piece())),
        SentenceConfig(),
    )
    text = f"A picture {'QUJD' * 10_000} and a cat"
    assert n_tokens(text, texts) < 20
    chunks = chunks_of(texts, text, ChunkSettings(16, 0), 1000, has_pages=False)
    assert max(len(chunk.text) for chunk in chunks) <= 16 * MAX_TOKEN_CHARS
    assert "".join(chunk.text.strip() for chunk in chunks).replace(" ", "") == text.replace(" ", "")
    assert all(n_tokens(chunk.text, texts) <= chunk.tokens for chunk in chunks)
