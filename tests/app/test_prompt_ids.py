"""Conversations become the token ids that `transformers` gives them, with tokenizers and templates
that go together as in a model folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from app.prompts import message_ids
from app.protocol import Message
from gpu import Tokenizer
from tests.app.real_templates import FOLDER
from tests.gpu import made_tokenizers as made
from tests.gpu.tokenizer_families import BYTE_FALLBACK, LLAMA3

CONVERSATIONS = [
    [Message("user", "Où? 🦊\n\n"), Message("assistant", "  There. "), Message("user", "ok")],
    [Message("user", "Привет"), Message("assistant", "")],
]
CHATML = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
KINDS: dict[str, tuple[Callable[[], tokenizers.Tokenizer], dict[str, Any], str]] = {
    "chatml": (made.byte_level, CHATML, "smollm-2"),
    "llama 3": (made.llama3, LLAMA3, "llama-3"),
    "llama 2": (made.byte_fallback, BYTE_FALLBACK, "llama-2"),
    "mistral": (made.byte_fallback, BYTE_FALLBACK, "mistral-v0.2"),
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
