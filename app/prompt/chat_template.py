"""Chat templates: a model's Jinja source, rendered as the `transformers` library renders it.

A template comes with a model, so it is somebody else's code. It runs in a sandbox (`app.sandbox`)
in a process of its own, with limits of time, memory and output; requests cannot bring templates of
their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from app.limited_pool import LimitedPool
from app.limited_process import LimitedProcess, Limits, OverLimit
from app.protocol import Message
from app.template_process import MAX_TEXT_CHARS, Refused, Rendered, Rendering
from gpu import InvalidRequest

MAX_TEMPLATE_CHARS = 256 * 1024
MAX_SECONDS = 2.0
START_SECONDS = 20.0
LIMITS = Limits(memory_bytes=512 * 1024 * 1024, reply_bytes=4 * MAX_TEXT_CHARS + 1024)
NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Code points that are in no text; used as marks that survive rendering."""

_answers = msgspec.msgpack.Decoder(Rendered | Refused)


def _start() -> LimitedProcess:
    process = LimitedProcess("app.template_process", LIMITS)
    process.call(b"", START_SECONDS)
    return process


POOL = LimitedPool(
    _start,
    max(2, min(4, os.cpu_count() or 2)),
    "too many conversations are being brought into the model's chat template",
)
"""Renders all templates. Started by the first, or by `POOL.warm`."""


def render(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    continue_final: bool = False,
    bos_token: str | None = None,
    eos_token: str | None = None,
) -> str:
    """The text of a conversation.

    `continue_final` cuts it after the content of the last message, which must be the assistant's,
    so that the model writes on from there. Raises `InvalidRequest` when the template refuses the
    messages or cannot be rendered.
    """
    turns = [{"role": message.role, "content": message.content} for message in messages]
    if not turns:
        raise InvalidRequest("messages must have at least one message", "messages")
    cut = ""
    if continue_final:
        if turns[-1]["role"] != "assistant":
            raise InvalidRequest(
                "continue_final needs a last message of the assistant to continue", "messages"
            )
        cut = free_mark(message.content for message in messages)
        turns[-1]["content"] += f"{cut} "
    named = {"bos_token": bos_token, "eos_token": eos_token}
    asked = Rendering(
        template,
        turns,
        add_generation_prompt and not continue_final,
        {name: token for name, token in named.items() if token is not None},
        datetime.now().isoformat(),
    )
    text = _rendered(asked)
    return _cut(text, cut) if cut else text


def _rendered(asked: Rendering) -> str:
    n_chars = len(asked.template)
    if n_chars > MAX_TEMPLATE_CHARS:
        raise InvalidRequest(
            f"the model's chat template has {n_chars} characters, but {MAX_TEMPLATE_CHARS} "
            "are the most that is accepted; use completion instead of chat",
            "messages",
        )
    try:
        request = msgspec.msgpack.encode(asked)
    except UnicodeEncodeError:
        raise InvalidRequest(
            "the messages and the model's chat template must be Unicode, but have half of a "
            "surrogate pair",
            "messages",
        ) from None
    try:
        found = _answers.decode(POOL.call(request, MAX_SECONDS))
    except OverLimit as error:
        found = Refused(f"it {error}")
    if isinstance(found, Rendered):
        return found.text
    raise InvalidRequest(
        f"the model's chat template does not take these messages: {found.reason}", "messages"
    )


def _cut(text: str, mark: str) -> str:
    """Text before the mark. A template that trims the content takes the space after the mark;
    then the spaces before it go as well, as they would have without the mark."""
    at = text.rfind(mark)
    if at < 0:
        raise InvalidRequest(
            "the model's chat template leaves out the last message, so it cannot be continued",
            "messages",
        )
    return text[:at] if text[at + 1 : at + 2] == " " else text[:at].rstrip()


def free_mark(texts: Iterator[str] | Sequence[str]) -> str:
    """A noncharacter that is in none of `texts`."""
    used = set().union(*map(set, texts))
    for mark in NONCHARACTERS:
        if mark not in used:
            return mark
    raise InvalidRequest("the messages use every Unicode noncharacter; leave one out", "messages")
