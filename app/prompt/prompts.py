"""From what a person wrote to token ids: plain text, chat messages, or ids."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Sequence
from typing import NamedTuple

from app.chat import free_mark, render
from app.engines import Tokenizer
from app.protocol import Message
from gpu import InvalidRequest, TextChunk, TextEncoding


def prompt_ids(
    tokenizer: Tokenizer,
    prompt: str | None = None,
    messages: Sequence[Message] | None = None,
    ids: list[int] | None = None,
    *,
    continue_final: bool = False,
) -> list[int]:
    """Token ids of exactly one of `prompt`, `messages` and `ids`; else `InvalidRequest`.

    A prompt is what the model reads: the names of special tokens in it are special tokens.
    In messages they are text, so that nobody can end their turn or begin another's.
    """
    if sum(given is not None for given in (prompt, messages, ids)) != 1:
        raise InvalidRequest("give exactly one of prompt, messages and ids", "prompt")
    if continue_final and messages is None:
        raise InvalidRequest("continue_final goes with messages", "continue_final")
    if messages is not None:
        return message_ids(tokenizer, messages, continue_final)
    found = tokenizer.encode(prompt) if prompt is not None else list(ids or ())
    if not found:
        raise InvalidRequest(
            "the prompt is empty, and this model needs at least one token to begin with",
            "ids" if prompt is None else "prompt",
        )
    return found


def message_ids(
    tokenizer: Tokenizer, messages: Sequence[Message], continue_final: bool = False
) -> list[int]:
    """Token ids of a conversation, in the model's chat template; `InvalidRequest` if it has none,
    or one that does not take these messages."""
    parts = rendered_parts(tokenizer, messages, continue_final).parts
    return [id for encoding in encoded_parts(tokenizer, parts) for id in encoding.ids]


class Part(NamedTuple):
    """A piece of a rendered conversation. `specials`: names of special tokens in it are those."""

    text: str
    specials: bool


class Parts(NamedTuple):
    """A rendered conversation, to be encoded part by part. `names`: the special tokens whose names
    stand in contents; `mark`: what was put into those names, "" if there are none."""

    parts: list[Part]
    names: set[str]
    mark: str


def encoded_parts(
    tokenizer: Tokenizer, parts: Sequence[Part], offsets: bool = False
) -> list[TextEncoding]:
    """Each part of a text that they are together."""
    begun = itertools.accumulate((bool(part.text) for part in parts), operator.or_, initial=False)
    chunks = [TextChunk(part.text, part.specials, inside) for part, inside in zip(parts, begun)]  # noqa: B905
    return tokenizer.encode_batch(chunks, offsets)


def rendered_parts(
    tokenizer: Tokenizer, messages: Sequence[Message], continue_final: bool = False
) -> Parts:
    """What the chat template makes of a conversation. Raises `InvalidRequest`.

    Contents that name a special token get a mark inside that name before they are rendered, so
    that the names left whole are the template's own. The text between those is then encoded with
    special tokens off. Without such contents the rendered text is encoded as it is.
    """
    contents = [message.content for message in messages]
    names = special_names(tokenizer, contents)
    mark = free_mark(contents) if names else ""
    marked_messages = [Message(m.role, marked(m.content, names, mark)) for m in messages]
    text = rendered(tokenizer, marked_messages, continue_final)
    if not names:
        return Parts([Part(text, True)], names, mark)
    own = special_names(tokenizer, [text])
    pieces = split(text, own)
    parts = [Part(piece.replace(mark, ""), at % 2 == 1) for at, piece in enumerate(pieces)]
    return Parts(parts, names, mark)


def rendered(tokenizer: Tokenizer, messages: Sequence[Message], continue_final: bool) -> str:
    """The chat template's text; `InvalidRequest` if there is none, or it takes them not."""
    if tokenizer.chat_template is None:
        raise InvalidRequest(
            "this model has no chat template, so it can only continue a text; "
            "send a prompt instead of messages",
            "messages",
        )
    return render(
        tokenizer.chat_template,
        messages,
        continue_final=continue_final,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
    )


def special_names(tokenizer: Tokenizer, texts: Sequence[str]) -> set[str]:
    """The special tokens whose names stand in one of `texts`."""
    found: set[str] = set()
    encodings = tokenizer.encode_batch([TextChunk(text) for text in texts])
    for text, encoding in zip(texts, encodings, strict=True):
        names = {tokenizer.piece(id) for id in set(encoding.ids) if tokenizer.is_special(id)}
        found |= {name for name in names if name in text}
    return found


def marked(text: str, names: set[str], mark: str) -> str:
    """`text` with a mark after the first character of every name of a special token."""
    for part in sorted(names, key=len, reverse=True):
        text = text.replace(part, part[0] + mark + part[1:])
    return text


def split(text: str, names: set[str]) -> list[str]:
    """`text` cut at `names`: text, name, text, name, … text."""
    if not names:
        return [text]
    longest_first = sorted(names, key=len, reverse=True)
    return re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
