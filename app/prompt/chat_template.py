"""Chat templates: Jinja sources of models, rendered as by `transformers`.

A template comes with a model, so it is untrusted code. It is rendered in a separate process
(`app.prompt.template_process`), in a sandbox (`app.prompt.sandbox`) and with limits on time, memory
and output. Requests cannot bring templates."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from functools import partial

import msgspec

from app.processes.limited_pool import LimitedPool
from app.processes.limited_process import LimitedProcess, LimitExceeded, ProcessLimits
from app.prompt.conversation import Tool, Turn, texts_of
from app.prompt.template_process import MAX_TEXT_CHARS, Rendered, RenderFailed, Rendering
from app.protocol.messages import Message
from gpu import InvalidRequest

MAX_TEMPLATE_CHARS = 256 * 1024
MAX_SECONDS = 2.0
LIMITS = ProcessLimits(memory_bytes=512 * 1024 * 1024, reply_bytes=4 * MAX_TEXT_CHARS + 1024)
NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Code points that occur in no text; used as marks that survive rendering."""

_decoder = msgspec.msgpack.Decoder(Rendered | RenderFailed)


POOL = LimitedPool(
    partial(LimitedProcess.start, "app.prompt.template_process", LIMITS),
    max(2, min(4, os.cpu_count() or 2)),
    "too many conversations are being rendered with the model's chat template",
)
"""Processes that render all templates, started by the first request or by `POOL.warm`."""


def apply_chat_template(
    template: str,
    messages: Sequence[Message | Turn],
    *,
    tools: Sequence[Tool] = (),
    add_generation_prompt: bool = True,
    continue_final: bool = False,
    **special_tokens: str | None,
) -> str:
    """Return the text of a conversation. `special_tokens`: by the names that templates know them
    by, such as `bos_token`.

    With `continue_final`, the text ends after the content of the last message, which must be the
    assistant's, so that the model continues it. Raises `InvalidRequest` if the template refuses
    the messages or cannot be rendered.
    """
    turns = [as_turn(message) for message in messages]
    if not turns:
        raise InvalidRequest(
            "messages must contain at least one message, but it is empty", "messages"
        )
    mark = ""
    if continue_final:
        if turns[-1]["role"] != "assistant":
            raise InvalidRequest(
                "continue_final needs a last message with the role assistant, but its role is "
                f"{turns[-1]['role']}",
                "messages",
            )
        if "tool_calls" in turns[-1]:
            raise InvalidRequest(
                "continue_final continues text, but the last message ends with tool calls; add "
                "their results as messages of the role tool",
                "messages",
            )
        mark = unused_mark(texts_of(turns))
        turns[-1] = {**turns[-1], "content": f"{turns[-1]['content']}{mark} "}
    rendering = Rendering(
        template,
        turns,
        list(tools),
        add_generation_prompt and not continue_final,
        {name: token for name, token in special_tokens.items() if token is not None},
        datetime.now().isoformat(),
    )
    text = _render(rendering)
    return _cut_at_mark(text, mark) if mark else text


def as_turn(message: Message | Turn) -> Turn:
    """Return a message as a turn."""
    if isinstance(message, Message):
        return {"role": message.role, "content": message.content}
    return message


def _render(rendering: Rendering) -> str:
    n_chars = len(rendering.template)
    if n_chars > MAX_TEMPLATE_CHARS:
        raise InvalidRequest(
            f"the model's chat template has {n_chars} characters, but at most "
            f"{MAX_TEMPLATE_CHARS} are accepted; use completion instead of chat",
            "messages",
        )
    try:
        request = msgspec.json.encode(rendering)
    except UnicodeEncodeError:
        raise InvalidRequest(
            "the messages and the model's chat template must be valid Unicode, but contain half of "
            "a surrogate pair",
            "messages",
        ) from None
    try:
        reply = _decoder.decode(POOL.call(request, MAX_SECONDS))
    except LimitExceeded as error:
        reply = RenderFailed(f"it {error}")
    if isinstance(reply, Rendered):
        return reply.text
    raise InvalidRequest(
        f"the model's chat template does not accept these messages: {reply.reason}", "messages"
    )


def _cut_at_mark(text: str, mark: str) -> str:
    """Return the text before the mark.

    If the space after the mark is gone, the template trims contents; then the white space before
    the mark is removed too, as it would have been without a mark.
    """
    at = text.rfind(mark)
    if at < 0:
        raise InvalidRequest(
            "the model's chat template leaves out the last message, so it cannot be continued; "
            "send the request without continue_final",
            "messages",
        )
    return text[:at] if text[at + 1 : at + 2] == " " else text[:at].rstrip()


def unused_mark(texts: Sequence[str]) -> str:
    """Return a noncharacter that occurs in none of `texts`, nor its escape. Raises
    InvalidRequest."""
    used = set().union(*map(set, texts))
    for mark in NONCHARACTERS:
        if mark not in used and not any(escaped(mark) in text for text in texts):
            return mark
    raise InvalidRequest("the messages use every Unicode noncharacter; leave one out", "messages")


def escaped(mark: str) -> str:
    """Return a noncharacter as JSON and Python escape it, which a template that prints an object
    may do."""
    return f"\\u{ord(mark):04x}"
