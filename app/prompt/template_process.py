"""Rendering of chat templates, in a limited process (`app.processes.limited_child`)."""

from __future__ import annotations

import functools
import html  # noqa: F401  (imported by Markup.striptags, when no file can be opened any more)
import unicodedata  # noqa: F401  (imported for names of characters in a template)
from datetime import datetime

import jinja2
import jinja2.debug  # imported at the first error of a template, when no file can be opened
import msgspec
from jinja2.exceptions import SecurityError

from app.prompt.conversation import Tool, Turn
from app.prompt.sandbox import Environment

NO_FILES = True
MAX_IDLE_BYTES = 128 * 1024 * 1024
MAX_TEXT_CHARS = 4 * 1024 * 1024
MAX_REASON_CHARS = 1000


class Rendering(msgspec.Struct, frozen=True, array_like=True):
    """Request to render a conversation, in JSON: schemas of tools may have integers that are too
    large for MessagePack.

    tools   descriptions of tools, none of them if empty
    tokens  names of special tokens, such as {"bos_token": "<s>"}
    now     current time in ISO 8601
    """

    template: str
    messages: list[Turn]
    tools: list[Tool]
    add_generation_prompt: bool
    tokens: dict[str, str]
    now: str


class Rendered(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Text of a rendered conversation."""

    text: str


class RenderFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The template refuses the conversation or cannot be rendered."""

    reason: str


class _Clock:
    """Clock for templates; shows the time that the server sent with the request."""

    now = datetime.min

    def strftime(self, format: str) -> str:
        return self.now.strftime(format)


_clock = _Clock()
_decoder = msgspec.json.Decoder(Rendering)


def answer(request: bytes) -> bytes:
    """Answer a `Rendering` with `Rendered` or `RenderFailed` in MessagePack."""
    rendering = _decoder.decode(request)
    try:
        return msgspec.msgpack.encode(Rendered(_render(rendering)))
    except MemoryError:
        raise
    except (jinja2.TemplateError, SecurityError) as error:
        reason = error.message or type(error).__name__
    except UnicodeEncodeError:
        reason = "its output contains half of a surrogate pair, which is not valid Unicode"
    except Exception as error:  # any error of the template's code
        reason = f"{type(error).__name__}: {error}"
    shown = reason[:MAX_REASON_CHARS].encode("utf-8", "replace").decode()
    return msgspec.msgpack.encode(RenderFailed(shown))


@functools.lru_cache(maxsize=4)
def _compiled(source: str) -> jinja2.Template:
    return Environment(_clock.strftime).from_string(source)


def _render(rendering: Rendering) -> str:
    _clock.now = datetime.fromisoformat(rendering.now)
    parts: list[str] = []
    n_chars = 0
    for part in _compiled(rendering.template).generate(
        messages=rendering.messages,
        tools=rendering.tools or None,
        documents=None,
        add_generation_prompt=rendering.add_generation_prompt,
        **rendering.tokens,
    ):
        parts.append(part)
        n_chars += len(part)
        if n_chars > MAX_TEXT_CHARS:
            raise SecurityError(
                f"its output has more than {MAX_TEXT_CHARS} characters, the limit here"
            )
    return "".join(parts)


def prepare() -> None:
    """Make Jinja and `strftime` import and read what they need, while files can be opened."""
    template = "{% for m in messages %}{{ strftime_now('%c') }}{{ m | tojson }}{% endfor %}"
    messages: list[Turn] = [{"role": "user", "content": ""}]
    for text in (template, "{{ raise_exception('') }}"):
        rendering = Rendering(text, messages, [], True, {}, datetime.now().isoformat())
        answer(msgspec.json.encode(rendering))
