"""Templates of real models give exactly the same text as in `transformers`."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import tokenizers
from tokenizers import models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from app.prompt import chat_template as chat
from app.prompt.chat_template import render
from app.ws.protocol import Message
from gpu import InvalidRequest
from tests.app.prompt.real_templates import FOLDER, SOURCES, template

USER = Message("user", "  Où est « Ω » ? 🦊👩‍👩‍👧\tعربي e\u0301\r\n")
ANSWER = Message("assistant", 'Là-bas: <b>"x"</b> & {{ y }} {% z %}\n\n  ')
SYSTEM = Message("system", "Be brief.\n")
THOUGHT = Message("assistant", "<think>\nHm…\n</think>\n\nYes.")
CONVERSATIONS = {
    "one turn": [USER],
    "system": [SYSTEM, USER],
    "several turns": [USER, ANSWER, Message("user", "And now?"), THOUGHT, Message("user", "ok")],
    "system and several turns": [SYSTEM, USER, THOUGHT, Message("user", "{}")],
    "ends with the assistant": [USER, ANSWER],
    "empty contents": [Message("user", ""), Message("assistant", ""), Message("user", " ")],
    "roles do not alternate": [USER, USER],
}
CONTINUED = ["Là", "Là ", "  x\n", "<think>\nHm"]


class Fixed(datetime.datetime):
    """Fixed clock, because some templates write the date."""

    @classmethod
    def now(cls, tz: Any = None) -> Fixed:
        return cls(2026, 2, 3, 4, 5)


@pytest.fixture(autouse=True)
def one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "datetime", Fixed)
    monkeypatch.setattr(chat_template_utils, "datetime", Fixed)


def expected(name: str, messages: list[Message], **how: bool) -> str | None:
    """Return the text of `transformers`; None if the template refuses the messages."""
    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **SOURCES[name].tokens)
    turns = [{"role": message.role, "content": message.content} for message in messages]
    try:
        text = tokenizer.apply_chat_template(
            turns, chat_template=template(name), tokenize=False, **how
        )
    except Exception:
        return None
    return str(text)


def got(name: str, messages: list[Message], **how: bool) -> str | None:
    try:
        return render(template(name), messages, **SOURCES[name].tokens, **how)
    except InvalidRequest:
        return None


def test_every_template_has_a_source() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.jinja")) == sorted(SOURCES)
    assert len(SOURCES) >= 15


@pytest.mark.parametrize("name", SOURCES)
def test_it_renders_as_transformers_does(name: str) -> None:
    taken = 0
    for messages in CONVERSATIONS.values():
        for prompt in (True, False):
            want = expected(name, messages, add_generation_prompt=prompt)
            assert got(name, messages, add_generation_prompt=prompt) == want
            taken += want is not None
    assert taken >= 6  # at least so many are texts rather than refusals


@pytest.mark.parametrize("name", SOURCES)
def test_it_continues_as_transformers_does(name: str) -> None:
    taken = 0
    for begun in CONTINUED:
        messages = [Message("user", "Hi"), Message("assistant", begun)]
        want = expected(name, messages, continue_final_message=True)
        assert got(name, messages, continue_final=True) == want
        taken += want is not None
    assert taken >= 3


def test_long_conversations_are_within_the_bounds() -> None:
    turns = [Message("user", "A b\n" * 10_000), Message("assistant", "C </think> d\n" * 3_000)]
    messages = [*turns * 30, turns[0]]
    for name in SOURCES:
        want = expected(name, messages, add_generation_prompt=True)
        assert want is not None
        assert got(name, messages, add_generation_prompt=True) == want
