"""Encoding, decoding and special tokens of whole texts. For streams see test_tokenizer_streams.py,
for a model folder's files test_tokenizer_files.py."""

from __future__ import annotations

import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, processors
from transformers import AutoTokenizer

from gpu.errors import InvalidRequest, ModelError
from gpu.text.added_tokens import begin_with
from gpu.text.token_table import TextChunk
from gpu.text.tokenizer import LONG_TEXT_CHARS, Tokenizer
from tests.gpu.text import made_tokenizers as made
from tests.gpu.text.tokenizer_families import BYTE_FALLBACK, BYTE_LEVEL, LLAMA3, random_text, stream

TEXTS = [
    "",
    " ",
    "  two spaces first",
    "Once upon a time",
    "line\nline\r\n\n\ttab \x00\x07\x1b end ",
    "naïve café — «Привет» 你好",
    "🙂👩‍👩‍👧🇩🇪 e\u0301 \u200d\ufeff\u2028",
    "\U0010ffff\ue000\ufffd",
]


# ---- whole texts -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_unchanged_by_encoding_and_decoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_random_text_survives_as_plain_text(tokenizer: Tokenizer) -> None:
    rng = random.Random(1)
    for _ in range(500):
        text = random_text(rng).replace("▁", "")  # SentencePiece cannot distinguish it from a space
        ids = tokenizer.encode(text, specials=False)
        assert tokenizer.decode(ids) == text
        assert not any(tokenizer.is_special(id) for id in ids[1:])


def test_decoding_equals_the_library_where_all_bytes_are_text(tokenizer: Tokenizer) -> None:
    rng = random.Random(2)
    backend = tokenizer._backend
    for _ in range(500):
        ids = tokenizer.encode(random_text(rng))
        assert tokenizer.decode(ids) == backend.decode(ids)


def test_decoding_byte_level_equals_the_library_on_any_ids(tmp_path: Path) -> None:
    backend = made.byte_level()
    tokenizer = Tokenizer.load(made.save(tmp_path, backend, BYTE_LEVEL))
    rng = random.Random(3)
    for _ in range(2000):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(12))]
        assert tokenizer.decode(ids) == backend.decode(ids)


@pytest.mark.parametrize("specials", [True, False])
def test_offsets_give_the_characters_of_a_token(tokenizer: Tokenizer, specials: bool) -> None:
    rng = random.Random(7)
    added = b" " * tokenizer.n_stripped_spaces  # what SentencePiece puts before a text
    for _ in range(500):
        text = random_text(rng).replace("▁", "")
        ids, offsets = tokenizer.encode_with_offsets(text, bos=False, specials=specials)
        assert ids == tokenizer.encode(text, bos=False, specials=specials)
        assert len(offsets) == len(ids)
        for id, (start, end) in zip(ids, offsets, strict=True):
            assert 0 <= start <= end <= len(text)
            if tokenizer.is_special(id):
                assert tokenizer.piece(id) == text[start:end]
            else:
                data = tokenizer.token_bytes(id)
                assert data in added + text[start:end].encode()
                assert text[start + 1 : max(0, end - 1)].encode() in data
        seen = {i for start, end in offsets for i in range(start, end)}
        assert seen == set(range(len(text)))


def test_the_prefix_of_every_text_has_no_characters(tokenizer: Tokenizer) -> None:
    ids, offsets = tokenizer.encode_with_offsets("Once")
    n = len(ids) - len(tokenizer.encode("Once", bos=False))
    assert ids == tokenizer.encode("Once")
    assert offsets[:n] == [(0, 0)] * n
    assert offsets[-1][1] == len("Once")


def test_a_tokenizer_can_be_loaded_from_its_file(tmp_path: Path) -> None:
    made.save(tmp_path, made.byte_fallback(), BYTE_FALLBACK)
    (tmp_path / "tokenizer.json").rename(tmp_path / "other.json")
    tokenizer = Tokenizer.load(tmp_path / "other.json")
    assert tokenizer.bos_token == "<s>"
    with pytest.raises(ModelError, match=r"tokenizer\.json: not found"):
        Tokenizer.load(tmp_path)


# ---- pieces and special tokens ---------------------------------------------------------------


def test_pieces_are_readable(tokenizer: Tokenizer) -> None:
    eos = tokenizer.eos_ids[0]
    assert tokenizer.piece(eos) == tokenizer.eos_token
    assert tokenizer.is_special(eos)
    assert tokenizer.piece(tokenizer.vocab_size) == f"<unused {tokenizer.vocab_size}>"
    assert tokenizer.piece(-1) == "<unused -1>"
    ids = tokenizer.encode("🙈", bos=False)
    assert "\ufffd" in tokenizer.piece(ids[-1])
    assert tokenizer.piece(tokenizer.encode("the cat", bos=False)[-1]).startswith((" ", "cat", "t"))
    assert not tokenizer.is_special(ids[-1])


def test_text_like_special_tokens_is_plain_text_on_request(tokenizer: Tokenizer) -> None:
    eos, id = tokenizer.eos_token, tokenizer.eos_ids[0]
    assert eos is not None
    text = f"a{eos}b"
    assert id in tokenizer.encode(text)
    plain = tokenizer.encode(text, bos=False, specials=False)
    assert not any(tokenizer.is_special(id) for id in plain)
    assert tokenizer.decode(plain) == text
    assert id in tokenizer.encode(text)  # and the switch does not stick


def test_threads_do_not_disturb_each_other(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        """Lets other threads run between setting the switch and using it."""

        def __init__(self, backend: tokenizers.Tokenizer) -> None:
            object.__setattr__(self, "backend", backend)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self.backend, name, value)

        def __getattr__(self, name: str) -> Any:
            if name == "encode_batch":
                time.sleep(0.002)
            return getattr(self.backend, name)

    text = f"the cat {tokenizer.eos_token} " * 5
    expected = {flag: tokenizer.encode(text, specials=flag) for flag in (True, False)}
    monkeypatch.setattr(tokenizer._encoder, "_backend", Slow(tokenizer._backend))
    flags = [i % 2 == 0 for i in range(60)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda flag: tokenizer.encode(text, specials=flag), flags))
    assert all(ids == expected[flag] for flag, ids in zip(flags, got, strict=True))


def test_long_texts_are_encoded_as_short_ones(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*TEXTS, f"the cat {tokenizer.eos_token} sat"]
    chunks = [TextChunk(text, specials, inside) for text in texts
              for specials in (True, False) for inside in (True, False)]  # fmt: skip
    short = tokenizer.encode_batch(chunks, offsets=True)
    monkeypatch.setattr("gpu.text.tokenizer.LONG_TEXT_CHARS", 0)
    assert tokenizer.encode_batch(chunks, offsets=True) == short
    assert tokenizer._long_encoder is not None


def test_a_short_text_need_not_wait_for_a_long_one(tokenizer: Tokenizer) -> None:
    expected = tokenizer.encode("the cat")
    with ThreadPoolExecutor(1) as pool, tokenizer._encoder_for("a" * LONG_TEXT_CHARS)._lock:
        assert pool.submit(tokenizer.encode, "the cat").result(timeout=60) == expected


def test_special_tokens_in_plain_text_are_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(
        models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0), ("▁", -1.0)], 0, False)
    )
    backend.add_special_tokens(["<unk>", "</s>"])
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer.load(made.save(tmp_path, backend, {"eos_token": "</s>"}))
    with pytest.raises(InvalidRequest, match="contains '</s>'"):
        tokenizer.encode("a</s>", specials=False)
    assert tokenizer.encode("az", specials=False) == [2, 0]
    assert tokenizer.encode("a</s>") == [2, 1]


def test_a_named_token_is_special_even_if_the_file_does_not_mark_it(tmp_path: Path) -> None:
    backend = made.byte_level()
    backend.add_tokens([AddedToken("<|end|>", special=False)])
    tokenizer = Tokenizer.load(made.save(tmp_path, backend, {"eos_token": "<|end|>"}))
    assert tokenizer.is_special(tokenizer.eos_ids[0])
    assert tokenizer.encode("<|end|>", bos=False) == list(tokenizer.eos_ids)
    assert tokenizer.eos_ids[0] not in tokenizer.encode("<|end|>", specials=False)


def test_added_tokens_that_are_not_special_are_text(tmp_path: Path) -> None:
    backend = made.byte_level()
    backend.add_tokens(["<think>", "   ", "é"])
    tokenizer = Tokenizer.load(made.save(tmp_path, backend))
    ids = tokenizer.encode("<think>   é", specials=False)
    assert len(ids) == 3
    assert stream(tokenizer, [], ids) == ["<think>", "   ", "é", ""]


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match=r"'\\ud83d' at 2, which is half"):
        tokenizer.encode("ab\ud83d")


# ---- the beginning of a text -----------------------------------------------------------------


def test_bos_is_added_as_the_post_processor_says_and_never_twice(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(made.save(tmp_path, made.byte_fallback(), BYTE_FALLBACK))
    assert tokenizer.encode("the")[0] == 1
    assert tokenizer.encode("the", bos=False)[0] != 1
    assert tokenizer.encode("<s>the").count(1) == 1
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("<s>the", specials=False).count(1) == 1


def test_bos_of_a_llama3_tokenizer_is_found(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(made.save(tmp_path, made.llama3(), LLAMA3))
    bos, *rest = tokenizer.encode("the cat")
    assert tokenizer.piece(bos) == "<|begin_of_text|>"
    assert tokenizer.encode("the cat", bos=False) == rest
    assert tokenizer.encode("<|begin_of_text|>the cat") == [bos, *rest]
    made.save(tmp_path, made.llama3(), {})  # the post-processor knows it even if no name is given
    assert Tokenizer.load(tmp_path).encode("the cat") == [bos, *rest]


@pytest.mark.parametrize("adds", [None, False, True])
@pytest.mark.parametrize("bos", ["<s>", None])
@pytest.mark.parametrize("begins", [False, True])
def test_the_post_processor_alone_says_how_a_text_begins(
    tmp_path: Path, adds: bool | None, bos: str | None, begins: bool
) -> None:
    """`add_bos_token` counts where there is no tokenizer.json, as in transformers 5."""
    backend = made.byte_fallback()
    if not begins:
        backend.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    config = {"eos_token": "</s>", "bos_token": bos, "add_bos_token": adds}
    made.save(tmp_path, backend, config)
    ids = Tokenizer.load(tmp_path).encode("the cat")
    assert ids == AutoTokenizer.from_pretrained(tmp_path)("the cat").input_ids
    assert (ids[0] == 1) is begins


def test_the_beginning_is_found_whatever_the_vocabulary_has(tmp_path: Path) -> None:
    """Also where the letter "a" has no token, and where a token has a colon in its name."""
    backend = tokenizers.Tokenizer(models.BPE(vocab={"B": 0}, merges=[]))
    backend.add_special_tokens(["<s:1>", "</s>"])
    begin_with(backend, "<s:1>")
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer.load(made.save(tmp_path, backend, {"eos_token": "</s>"}))
    assert (tokenizer.prefix, tokenizer.encode("BB")) == ((1,), [1, 0, 0])


def test_an_eos_that_the_post_processor_adds_is_left_out(tmp_path: Path) -> None:
    backend = made.byte_fallback()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer = Tokenizer.load(made.save(tmp_path, backend, BYTE_FALLBACK))
    assert tokenizer.encode("the")[0] == 1
    assert 2 not in tokenizer.encode("the")


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    backend = made.byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=32)
    tokenizer = Tokenizer.load(made.save(tmp_path, backend))
    text = "Once upon a time there was"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("a")) == 1


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    """With a switch interval of minutes, a thread runs only when another gives way by itself."""
    text = "".join(chr(97 + i * i % 26) for i in range(60_000))
    begun, order = threading.Event(), list[str]()

    def watch() -> None:
        begun.wait()
        order.append("another thread")

    def encode() -> None:
        begun.set()
        tokenizer.encode(text)
        order.append("encoded")

    before = sys.getswitchinterval()
    threads = [threading.Thread(target=target) for target in (watch, encode)]
    sys.setswitchinterval(300)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert order == ["another thread", "encoded"]
