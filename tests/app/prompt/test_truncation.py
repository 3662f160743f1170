"""Conversations that outgrow the context lose their oldest turns, whole, and nothing else."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from app.prompt.prompts import message_ids
from app.prompt.truncation import Room, Truncated, read_conversation, split_turns
from app.protocol.messages import Message
from tests.app.fake_tokenizer import FakeTokenizer

TOKENIZER = FakeTokenizer()
ENCODE = partial(message_ids, TOKENIZER)
SYSTEM = Message("system", "Be kind")


def says(role: str, n: int) -> Message:
    """Return a message of `n` tokens, beside those of the template."""
    return Message(role, "é" * (n // 2))  # type: ignore[arg-type]


def conversation(*sizes: int, system: bool = False) -> list[Message]:
    """Return turns of a question and an answer, of so many tokens each; the last has no answer."""
    messages = [SYSTEM] if system else []
    for size in sizes:
        messages += [says("user", size), says("assistant", size)]
    return messages[:-1]


def cut(messages: list[Message], context: int, max_tokens: int = 1) -> Truncated:
    return read_conversation(messages, ENCODE, Room(context, max_tokens), "auto")


def test_a_conversation_that_fits_is_whole() -> None:
    messages = conversation(10, 10, 10, system=True)
    ids = message_ids(TOKENIZER, messages)
    assert cut(messages, len(ids) + 1) == Truncated(ids)
    assert cut(messages, len(ids)).dropped != ()


def test_the_oldest_turns_go_with_their_answers_and_system_messages_stay() -> None:
    messages = conversation(20, 20, 20, 20, 20, system=True)
    messages.insert(6, Message("system", "Still kind"))
    found = cut(messages, len(message_ids(TOKENIZER, messages)) - 1)
    assert found.dropped == (1, 2, 3, 4), "a quarter of the context, in whole turns"
    kept = [message for i, message in enumerate(messages) if i not in found.dropped]
    assert kept[0] == SYSTEM
    assert kept[1].role == "user"
    assert found.ids == message_ids(TOKENIZER, kept)


@pytest.mark.parametrize("max_tokens", [1, 20, 1000])
@pytest.mark.parametrize("context", [60, 100, 150, 250])
def test_what_is_left_fits_with_room_for_the_answer(context: int, max_tokens: int) -> None:
    messages = conversation(8, 16, 4, 20, 10, 12, 6, 8, 4, system=True)
    room = context - min(max_tokens, context // 4)
    found = cut(messages, context, max_tokens)
    assert len(found.ids) <= room
    n = len(found.dropped)
    assert found.dropped == tuple(range(1, 1 + n)), "the oldest ones"
    assert n % 2 == 0, "whole turns"


def test_the_last_turn_stays_even_if_it_is_too_long() -> None:
    """The engine then refuses the prompt with the numbers, as without truncation."""
    messages = conversation(10, 10, 200, system=True)
    found = cut(messages, 100)
    assert found.dropped == (1, 2, 3, 4)
    assert found.ids == message_ids(TOKENIZER, [SYSTEM, messages[-1]])
    assert cut(messages[-1:], 100) == Truncated(message_ids(TOKENIZER, messages[-1:]))


def test_following_messages_begin_with_the_same_turn() -> None:
    """Turns are dropped several at a time, so that the prefix cache finds most of each prompt."""
    sizes = [10] * 6
    firsts = []
    for _ in range(20):
        sizes.append(10)
        firsts.append(len(cut(conversation(*sizes), 200).dropped))
    assert firsts == sorted(firsts)
    changes = sum(a != b for a, b in itertools.pairwise(firsts))
    assert 3 <= changes <= 20 * 26 // 50 + 1, "a quarter of the context at a time"


def test_an_answer_to_continue_stays_with_its_question() -> None:
    messages = [*conversation(30, 30, 30), says("assistant", 10)]
    encode = partial(ENCODE, continue_final=True)
    found = read_conversation(messages, encode, Room(70, 1), "auto")
    assert found.dropped == (0, 1, 2, 3)
    assert found.ids == message_ids(TOKENIZER, messages[4:], continue_final=True)


def test_turns_begin_with_what_a_user_says_after_an_answer() -> None:
    roles = ["system", "assistant", "user", "user", "assistant", "system", "user", "assistant"]
    messages = [Message(role, "") for role in roles]  # type: ignore[arg-type]
    assert split_turns(messages) == [[1], [2, 3, 4], [6, 7]]
    assert split_turns([SYSTEM]) == []


def test_calls_of_tools_and_their_results_are_part_of_a_turn() -> None:
    roles = ["user", "assistant", "tool", "tool", "assistant", "user", "assistant", "tool", "user"]
    messages = [{"role": role, "content": ""} for role in roles]
    assert split_turns(messages) == [[0, 1, 2, 3, 4], [5, 6, 7], [8]]


def test_nothing_is_left_out_unless_asked() -> None:
    messages = conversation(50, 50, 50)
    whole = Truncated(message_ids(TOKENIZER, messages))
    assert read_conversation(messages, ENCODE, Room(20, 1), "disabled") == whole
