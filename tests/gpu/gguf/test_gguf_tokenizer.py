"""The tokenizer of a GGUF file is the one of its folder, or is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from app import tale
from gpu.errors import ModelError
from gpu.text.added_tokens import begin_with
from gpu.text.model_proto import read_model
from gpu.text.sentence_piece import USER_DEFINED
from gpu.text.tokenizer import Tokenizer
from tests.gpu.gguf import gguf_models
from tests.gpu.text import made_tokenizers
from tests.gpu.text.test_sentence_piece import DATA

IM_END = "<|im_end|>"
Make = Callable[..., tuple[Path, Path]]


TEXTS = [
    *made_tokenizers.CORPUS[:3],
    "Hello, World! It's 12345 o'clock; don't\n\n  indent\t\ttabs   ",
    "<|im_start|>user\nhi<|im_end|>",
    "",
    " ",
    "é́ 🙂‍🇩🇪 ﬁ Å",
]


def same_tokens(got: Tokenizer, want: Tokenizer, texts: list[str] = TEXTS) -> None:
    for text in texts:
        for options in ({}, {"bos": False}):
            ids = got.encode(text, **options)
            assert ids == want.encode(text, **options), text
            assert got.decode(ids) == want.decode(ids)
    assert got.vocab_size == want.vocab_size
    assert [got.is_special(id) for id in range(want.vocab_size)] == [
        want.is_special(id) for id in range(want.vocab_size)
    ]
    assert [got.token_bytes(id) for id in range(want.vocab_size)] == [
        want.token_bytes(id) for id in range(want.vocab_size)
    ]
    assert (got.bos_token, got.eos_token, got.eos_ids) == (
        want.bos_token,
        want.eos_token,
        want.eos_ids,
    )


def tokenizer_file(folder: Path, **values: Any) -> Path:
    """A GGUF file with only a folder's tokenizer."""
    path = folder / "tokenizer.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    gguf_models.add_tokenizer(writer, folder)
    for key, value in values.items():
        writer.add_string(f"tokenizer.ggml.{key}", value)
    gguf_models.finish(writer)
    return path


def test_byte_level_bpe(tmp_path: Path) -> None:
    config = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>", "add_bos_token": True}
    made = made_tokenizers.byte_level()
    begin_with(made, "<|begin|>")
    folder = made_tokenizers.save(tmp_path, made, config)
    same_tokens(Tokenizer.load(tokenizer_file(folder)), Tokenizer.load(folder))


def test_the_bundled_models_tokenizer_and_chat_template_are_read(tmp_path: Path) -> None:
    path = gguf_models.write(tale.model_dir(), tmp_path / "tale.gguf", "F16", pre="qwen2")
    got, want = Tokenizer.load(path), Tokenizer.load(tale.model_dir())
    same_tokens(got, want, TEXTS[:-1])  # without the text that Qwen's tokenizer normalises
    assert want.chat_template is not None
    assert got.chat_template == want.chat_template


@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("default", [True, False])
def test_several_templates_are_read(tmp_path: Path, tools: bool, default: bool) -> None:
    """Without a default it is the first of the others."""
    named = [{"name": "rag", "template": "one"}]
    named += [{"name": "default", "template": "two"}] if default else []
    named += [{"name": "tool_use", "template": "three"}] if tools else []
    folder = made_tokenizers.save(
        tmp_path, made_tokenizers.byte_level(), {"eos_token": "<|im_end|>", "chat_template": named}
    )
    want = ("two" if default else "one", "three" if tools else None)
    for tokenizer in (Tokenizer.load(folder), Tokenizer.load(tokenizer_file(folder))):
        assert (tokenizer.chat_template, tokenizer.tool_template) == want


def test_special_tokens_have_the_names_of_the_config(tmp_path: Path) -> None:
    roles = {
        "bos_token": "<|begin|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|begin|>",
        "unk_token": "<|im_start|>",
        "sep_token": "<|im_end|>",
        "mask_token": "<|im_start|>",
    }
    folder = made_tokenizers.save(tmp_path, made_tokenizers.byte_level(), roles)
    for tokenizer in (Tokenizer.load(folder), Tokenizer.load(tokenizer_file(folder))):
        assert tokenizer.special_tokens == roles


def test_add_bos_without_a_bos_is_no_error(tmp_path: Path) -> None:
    config = {"eos_token": "<|im_end|>", "add_bos_token": True}
    folder = made_tokenizers.save(tmp_path, made_tokenizers.byte_level(), config)
    path = tokenizer_file(folder)
    assert b"add_bos_token" in path.read_bytes()
    assert Tokenizer.load(path).prefix == ()


def test_llama_3s_pretokenizer(tmp_path: Path) -> None:
    made = made_tokenizers.llama3()
    config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "add_bos_token": True}
    folder = made_tokenizers.save(tmp_path, made, config)
    got = Tokenizer.load(tokenizer_file(folder, pre="llama-bpe"))
    want = Tokenizer.load(folder)
    for text in (" one two", "12345", "a\r\nb", "  x", "naïve café"):  # no contractions there
        assert got.encode(text) == want.encode(text), text


def test_sentence_pieces_merge_by_their_scores(tmp_path: Path) -> None:
    made = made_tokenizers.byte_fallback()
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    folder = made_tokenizers.save(tmp_path, made, config)
    state = json.loads(made.to_str())
    vocab = state["model"]["vocab"]
    rank = {"".join(merge): i for i, merge in enumerate(state["model"]["merges"])}
    tokens = sorted(vocab, key=lambda token: vocab[token])
    path = folder / "pieces.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-1.0 - rank.get(token, -1000) for token in tokens])
    types = {"<unk>": 2, "<s>": 3, "</s>": 3}
    writer.add_token_types([types.get(t, 6 if t.startswith("<0x") else 1) for t in tokens])
    writer.add_bos_token_id(vocab["<s>"])
    writer.add_eos_token_id(vocab["</s>"])
    gguf_models.finish(writer)
    same_tokens(Tokenizer.load(path), Tokenizer.load(folder))


def test_runs_of_spaces_of_a_sentence_piece_model(tmp_path: Path) -> None:
    """Gemma's GGUF files have the user's pieces of several spaces with spaces, its own with ▁."""
    file = DATA / "bpe-spaces.model"
    pieces = read_model(file)
    kinds = list(zip(pieces.texts, pieces.types, strict=True))
    runs = [text for text, type in kinds if type == USER_DEFINED and not text.strip("▁")]
    assert "▁▁" in runs
    assert not pieces.add_prefix
    path = tmp_path / "pieces.gguf"
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(
        [text.replace("▁", " ") if text in runs else text for text in pieces.texts]
    )
    writer.add_token_scores(list(pieces.scores))
    writer.add_token_types(list(pieces.types))
    writer.add_add_space_prefix(False)
    writer.add_bos_token_id(pieces.bos_id)
    writer.add_eos_token_id(pieces.eos_id)
    gguf_models.finish(writer)
    same_tokens(Tokenizer.load(path), Tokenizer.load(file), [*TEXTS, "▁the▁▁cat", "a ▁b", "▁  ▁"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"pre": "unheard-of"}, "tokenizer.ggml.pre must be one of"),
        ({"model": "bert"}, "tokenizer.ggml.model"),
    ],
)
def test_other_tokenizers_are_refused(tmp_path: Path, values: Any, words: str) -> None:
    folder = made_tokenizers.save(tmp_path, made_tokenizers.byte_level(), {})
    path = folder / "t.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(values.get("model", "gpt2"))
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_merges(["a b"])
    if "pre" in values:
        writer.add_tokenizer_pre(values["pre"])
    gguf_models.finish(writer)
    with pytest.raises(ModelError, match=words):
        Tokenizer.load(path)
