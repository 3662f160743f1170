"""Token ids of a prompt: plain text, chat messages, or ids."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from app.engine_client import Tokenizer
from app.prompt.chat_template import apply_chat_template, as_turn, escaped, unused_mark
from app.prompt.conversation import Tool, Turn, has_calls, map_texts, map_turn, texts_of
from app.prompt.tool_calls.registry import tool_format
from app.protocol.messages import Message
from gpu import InvalidRequest, TextChunk, TextEncoding


def prompt_ids(
    tokenizer: Tokenizer,
    prompt: str | None = None,
    messages: Sequence[Message | Turn] | None = None,
    ids: list[int] | None = None,
    *,
    continue_final: bool = False,
    tools: Sequence[Tool] = (),
) -> list[int]:
    """Return the token ids of exactly one of `prompt`, `messages` (with `tools`) and `ids`.

    Names of special tokens are special tokens in a prompt, but plain text in messages and tools, so
    that the content of a message cannot end its turn or begin another one. Raises InvalidRequest.
    """
    if sum(given is not None for given in (prompt, messages, ids)) != 1:
        raise InvalidRequest("expected exactly one of prompt, messages and ids", "prompt")
    if continue_final and messages is None:
        raise InvalidRequest(
            "continue_final applies to messages only; leave it out, or send messages",
            "continue_final",
        )
    if messages is not None:
        return message_ids(tokenizer, messages, continue_final, tools)
    result = tokenizer.encode(prompt) if prompt is not None else list(ids or ())
    if not result:
        raise InvalidRequest(
            "the prompt is empty, but this model needs at least one token to start from",
            "ids" if prompt is None else "prompt",
        )
    return result


def message_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message | Turn],
    continue_final: bool = False,
    tools: Sequence[Tool] = (),
) -> list[int]:
    """Return the token ids of a conversation rendered with the model's chat template.

    Raises InvalidRequest if the model has none, or if it does not accept these messages or tools.
    """
    parts = render_prompt(tokenizer, messages, continue_final, tools).parts
    return [id for encoding in encode_parts(tokenizer, parts) for id in encoding.ids]


class PromptPart(NamedTuple):
    """Part of a rendered conversation. `specials`: names of special tokens are special tokens."""

    text: str
    specials: bool


class RenderedPrompt(NamedTuple):
    """Rendered conversation, to be encoded part by part.

    parts  its text in parts
    names  names of special tokens that occur in contents
    mark   character that was inserted into those names; "" if there are none
    """

    parts: list[PromptPart]
    names: set[str]
    mark: str

    @property
    def whole(self) -> str:
        """The joined text of the parts."""
        return "".join(part.text for part in self.parts)


def encode_parts(
    tokenizer: Tokenizer, parts: Sequence[PromptPart], offsets: bool = False
) -> list[TextEncoding]:
    """Return the encoding of each part of one text."""
    begun = itertools.accumulate((bool(part.text) for part in parts), operator.or_, initial=False)
    chunks = [TextChunk(part.text, part.specials, inside) for part, inside in zip(parts, begun)]  # noqa: B905
    return tokenizer.encode_batch(chunks, offsets)


def render_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[Message | Turn],
    continue_final: bool = False,
    tools: Sequence[Tool] = (),
    *,
    add_generation_prompt: bool = True,
) -> RenderedPrompt:
    """Render a conversation with the chat template, in parts. Raises InvalidRequest.

    `add_generation_prompt`: as in transformers, end where the assistant's answer begins.

    Names of special tokens in what a client wrote (contents, calls, descriptions of tools …) get a
    mark inside before rendering, so that the unmarked names in the result are the template's own.
    The text between those is then encoded with special tokens off. If there is no such name, the
    result is one part.
    """
    turns = [as_turn(message) for message in messages]
    texts = texts_of(turns, tools)
    names = special_names(tokenizer, texts)
    mark = unused_mark(texts) if names else ""

    def marked(text: str) -> str:
        return mark_names(text, names, mark)

    marked_tools = [map_texts(tool, marked) for tool in tools]
    marked_turns = [map_turn(turn, marked) for turn in turns]
    text = render_messages(
        tokenizer,
        marked_turns,
        continue_final,
        marked_tools,
        add_generation_prompt=add_generation_prompt,
    )
    if not names:
        return RenderedPrompt([PromptPart(text, True)], names, mark)
    template_names = special_names(tokenizer, [text])
    pieces = split_at_names(text, template_names)
    parts = [PromptPart(remove_mark(piece, mark), at % 2 == 1) for at, piece in enumerate(pieces)]
    return RenderedPrompt(parts, names, mark)


def render_messages(
    tokenizer: Tokenizer,
    messages: Sequence[Message | Turn],
    continue_final: bool,
    tools: Sequence[Tool] = (),
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Return the text of the chat template.

    Raises InvalidRequest, also if there is no template, or if it would leave out a tool.
    """
    turns = [as_turn(message) for message in messages]
    with_tools = bool(tools) or has_calls(turns)
    template = chosen_template(tokenizer, with_tools)
    if template is None:
        raise InvalidRequest(
            "this model has no chat template, so it can only continue plain text; "
            "send a prompt instead of messages",
            "messages",
        )
    if with_tools:
        form = tool_format(template)
        turns = form.conversation(turns, tools, template)
    named: dict[str, Any] = {**tokenizer.special_tokens}
    text = apply_chat_template(
        template,
        turns,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        continue_final=continue_final,
        **named,
    )
    for tool in tools:
        if tool["function"]["name"] not in text:
            raise InvalidRequest(
                "the model's chat template leaves out the tools of this conversation; it may need "
                "a message of the user",
                "tools",
            )
    return text


def chosen_template(tokenizer: Tokenizer, with_tools: bool) -> str | None:
    """Return the template of conversations with tools, or without; None if the model has none."""
    return (tokenizer.tool_template if with_tools else None) or tokenizer.chat_template


def special_names(tokenizer: Tokenizer, texts: Sequence[str]) -> set[str]:
    """Return the names of special tokens that occur in `texts`."""
    result: set[str] = set()
    encodings = tokenizer.encode_batch([TextChunk(text) for text in texts])
    for text, encoding in zip(texts, encodings, strict=True):
        names = {tokenizer.piece(id) for id in set(encoding.ids) if tokenizer.is_special(id)}
        result |= {name for name in names if name in text}
    return result


def mark_names(text: str, names: set[str], mark: str) -> str:
    """Return `text` with a mark after the first character of every name in `names`."""
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, name[0] + mark + name[1:])
    return text


def remove_mark(text: str, mark: str) -> str:
    """Return `text` without marks, also where a template has escaped them."""
    return text.replace(mark, "").replace(escaped(mark), "")


def split_at_names(text: str, names: set[str]) -> list[str]:
    """Split `text` at `names` into text, name, text, name, … text."""
    if not names:
        return [text]
    longest_first = sorted(names, key=len, reverse=True)
    return re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
