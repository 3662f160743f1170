"""Streaming decode against whole texts: no part of a character is shown, and no text is late."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from gpu.text.decode_stream import DecodeStream
from gpu.text.tokenizer import Tokenizer
from tests.gpu.text import made_tokenizers as made
from tests.gpu.text.tokenizer_families import BYTE_FALLBACK, random_text, stream


def test_streamed_pieces_join_to_the_whole_text(tokenizer: Tokenizer) -> None:
    rng = random.Random(4)
    for _ in range(2000):
        ids = [rng.randrange(tokenizer.vocab_size + 3) for _ in range(rng.randrange(20))]
        data = b"".join(tokenizer.token_bytes(id) for id in ids)
        if tokenizer.n_stripped_spaces and data.startswith(b" "):
            data = data[1:]
        assert "".join(stream(tokenizer, [], ids)) == data.decode("utf-8", "replace")


def test_a_prompt_and_its_continuation_join_to_the_whole_text(tokenizer: Tokenizer) -> None:
    rng = random.Random(5)
    for _ in range(2000):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(20))]
        cut = rng.randrange(len(ids) + 1)
        shown = DecodeStream(tokenizer, [])
        prompt = "".join(shown.push(id) for id in ids[:cut])  # its complete characters
        rest = "".join(stream(tokenizer, ids[:cut], ids[cut:]))
        assert prompt + rest == tokenizer.decode(ids)


def test_streamed_text_never_contains_half_a_character(tokenizer: Tokenizer) -> None:
    rng = random.Random(6)
    for _ in range(300):
        text = random_text(rng).replace("\ufffd", "")
        for piece in stream(tokenizer, [], tokenizer.encode(text, specials=False)):
            assert "\ufffd" not in piece


def test_every_token_has_its_own_text_as_soon_as_it_is_complete(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(made.save(tmp_path, made.byte_fallback(), BYTE_FALLBACK))
    ids = tokenizer.encode("\n\n🙂\ncat")
    assert stream(tokenizer, [], ids)[:9] == ["", "", "\n", "\n", "", "", "", "🙂", "\n"]


def test_the_space_before_the_first_word_belongs_to_a_continuation_only(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(made.save(tmp_path, made.byte_fallback(), BYTE_FALLBACK))
    the = tokenizer.encode("the cat", bos=False)
    assert "".join(stream(tokenizer, [1], the)) == "the cat"
    assert "".join(stream(tokenizer, tokenizer.encode("to"), the)) == " the cat"
    assert "".join(stream(tokenizer, [1, 1, 2], the)) == "the cat"


def test_a_prompt_that_ends_inside_a_character_is_completed(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🙈b", bos=False)
    inside = next(i for i, id in enumerate(ids) if b"\xf0" in tokenizer.token_bytes(id)) + 1
    assert "".join(stream(tokenizer, ids[:inside], ids[inside:])) == "🙈b"


def test_the_time_per_token_does_not_grow_with_the_text(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tokenizer.encode("the cat sat in the sun " * 400)
    lookups = 0

    def counted(id: int, of: Any = tokenizer.token_bytes) -> bytes:
        nonlocal lookups
        lookups += 1
        return bytes(of(id))

    monkeypatch.setattr(tokenizer, "token_bytes", counted)
    decode = DecodeStream(tokenizer, ids)
    assert lookups < 10  # only the end of the prompt matters
    for i, id in enumerate(ids):
        before = lookups
        decode.push(id)
        assert lookups == before + 1, f"token {i}"
