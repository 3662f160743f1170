"""Templates of real models give exactly the same text as in `transformers`."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from tokenizers import models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from app.prompt import chat_template as chat
from app.prompt.chat_template import apply_chat_template, as_turn
from app.prompt.conversation import Tool, Turn
from app.prompt.tool_calls.registry import MENTIONS_TOOLS, tool_format
from app.protocol.messages import Message
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


def expected(name: str, messages: Sequence[Message | Turn], **how: Any) -> str | None:
    """Return the text of `transformers`; None if the template refuses the messages."""
    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **SOURCES[name].tokens)
    turns = [as_turn(message) for message in messages]
    try:
        text = tokenizer.apply_chat_template(
            turns, chat_template=template(name), tokenize=False, **how
        )
    except Exception:
        return None
    return str(text)


def got(name: str, messages: Sequence[Message | Turn], **how: Any) -> str | None:
    try:
        return apply_chat_template(template(name), messages, **SOURCES[name].tokens, **how)
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


@pytest.mark.parametrize("name", SOURCES)
def test_it_continues_after_reasoning_that_the_template_may_leave_out(name: str) -> None:
    begun = Message("assistant", "<think>\nHm…\n</think>\n\nYes, and")
    text = got(name, [Message("user", "Hi"), begun], continue_final=True)
    assert text is not None
    assert text.endswith("\n\nYes, and") or "Hm" not in text
    assert text.endswith("Yes, and")


TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The "weather" of a city, <b>now</b>: 20 °C & sun',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Orléans", "東京"]},
                    "days": {"type": "integer", "maximum": 10**30, "default": 1.0},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "time", "parameters": {"type": "object", "properties": {}}},
    },
]


def call(id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


ASKED: list[Turn] = [{"role": "user", "content": "What is it like in Orléans?"}]
CALLED: Turn = {
    "role": "assistant",
    "content": "",
    "tool_calls": [call("aB3dE6gH9", "get_weather", {"city": "Orléans", "days": 10**30})],
}
RESULT: Turn = {
    "role": "tool",
    "tool_call_id": "aB3dE6gH9",
    "name": "get_weather",
    "content": '{"sky": "blue", "°C": 21.50}',
}
TWO_CALLS = {**CALLED, "tool_calls": [*CALLED["tool_calls"], call("000000001", "time", {})]}
TOOL_CONVERSATIONS: dict[str, list[Turn]] = {
    "asked": ASKED,
    "asked by the system": [{"role": "system", "content": "Be brief.\n"}, *ASKED],
    "answered": [*ASKED, CALLED, RESULT],
    "another turn": [*ASKED, CALLED, RESULT, {"role": "assistant", "content": "Blue."}, *ASKED],
    "two calls": [
        *ASKED,
        TWO_CALLS,
        RESULT,
        {**RESULT, "tool_call_id": "000000001", "name": "time", "content": "12:00"},
    ],
}
WITH_TOOLS = [name for name in SOURCES if MENTIONS_TOOLS.search(template(name))]


def test_many_templates_have_tools() -> None:
    assert len(WITH_TOOLS) == 7


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_it_renders_tools_as_transformers_does(name: str) -> None:
    taken = 0
    for messages in TOOL_CONVERSATIONS.values():
        for tools in (TOOLS, []):
            want = expected(name, messages, tools=tools or None, add_generation_prompt=True)
            assert got(name, messages, tools=tools, add_generation_prompt=True) == want
            taken += want is not None
            assert not tools or want is None or "東京" in want
    assert taken >= 6


def test_calls_of_other_servers_get_ids_that_mistral_takes() -> None:
    ids = ("call_abc123", "call_abc124", "000000001")
    calls = [call(id, "get_weather", {}) for id in ids]
    results = [{**RESULT, "tool_call_id": id} for id in ids]
    turns = [*ASKED, {**CALLED, "tool_calls": calls}, *results]
    assert got("mistral-nemo", turns, tools=TOOLS) is None
    changed = tool_format(template("mistral-nemo")).conversation(turns, TOOLS, "")
    text = got("mistral-nemo", changed, tools=TOOLS)
    assert text is not None
    found = re.findall('"(?:id|call_id)": "([A-Za-z0-9]{9})"', text)
    assert found[:3] == found[3:]
    assert len(set(found)) == 3
    assert found[2] == "000000001"


def test_long_conversations_are_within_the_bounds() -> None:
    turns = [Message("user", "A b\n" * 10_000), Message("assistant", "C </think> d\n" * 3_000)]
    messages = [*turns * 30, turns[0]]
    for name in SOURCES:
        want = expected(name, messages, add_generation_prompt=True)
        assert want is not None
        assert got(name, messages, add_generation_prompt=True) == want
