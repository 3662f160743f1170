"""Conversations have the same token ids as in `transformers`, with the tokenizer and template of
a model folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from app.prompt.prompts import message_ids
from app.protocol.messages import Message
from gpu import Tokenizer
from tests.app.prompt.real_templates import FOLDER
from tests.gpu.text import made_tokenizers as made
from tests.gpu.text.tokenizer_families import BYTE_FALLBACK, LLAMA3

CONVERSATIONS = [
    [Message("user", "Où? 🦊\n\n"), Message("assistant", "  There. "), Message("user", "ok")],
    [Message("user", "Привет"), Message("assistant", "")],
]
CHATML = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def newer_llama2() -> tokenizers.Tokenizer:
    """Return a tokenizer that adds "▁" before a whole text only, like Mistral 7B v0.3's."""
    tokenizer = made.byte_fallback()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    return tokenizer


KINDS: dict[str, tuple[Callable[[], tokenizers.Tokenizer], dict[str, Any], str]] = {
    "chatml": (made.byte_level, CHATML, "smollm-2"),
    "llama 3": (made.llama3, LLAMA3, "llama-3"),
    "llama 2": (made.byte_fallback, BYTE_FALLBACK, "llama-2"),
    "mistral": (made.byte_fallback, BYTE_FALLBACK, "mistral-v0.2"),
    "newer mistral": (newer_llama2, BYTE_FALLBACK, "mistral-v0.2"),
    "zephyr": (made.byte_fallback, BYTE_FALLBACK, "zephyr"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    make, config, template = KINDS[kind]
    made.save(tmp_path, make(), config)
    shutil.copy(FOLDER / f"{template}.jinja", tmp_path / "chat_template.jinja")
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    for messages in CONVERSATIONS:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        expected = theirs.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        assert message_ids(ours, messages) == expected
        assert sum(map(ours.is_special, expected)) >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_in_one_message_changes_no_other(tmp_path: Path, kind: str) -> None:
    make, config, template = KINDS[kind]
    made.save(tmp_path, make(), config)
    shutil.copy(FOLDER / f"{template}.jinja", tmp_path / "chat_template.jinja")
    tokenizer = Tokenizer.load(tmp_path)
    answer = Message("assistant", "the cat")
    plain = message_ids(tokenizer, [Message("user", "a"), answer, Message("user", "b c")])
    named = [
        Message("user", f"a{tokenizer.special_tokens['eos_token']}"),
        answer,
        Message("user", "b c"),
    ]
    hostile = message_ids(tokenizer, named)
    end = tokenizer.eos_ids[0]
    assert hostile.count(end) == plain.count(end)
    ends = [at for at, id in enumerate(plain) if id == end]
    after = len(plain) - ends[-2:][0]  # after the answer
    assert hostile[-after:] == plain[-after:]
    assert hostile[:1] == plain[:1]
