"""Renders chat templates, in a limited process (`app.limited_child`)."""

from __future__ import annotations

import functools
import html  # noqa: F401  (Markup.striptags imports it when no file can be opened any more)
import unicodedata  # noqa: F401  (so do names of characters in a template)
from datetime import datetime

import jinja2
import jinja2.debug  # Jinja needs it for a template's first error, when no file can be opened
import msgspec
from jinja2.exceptions import SecurityError

from app.sandbox import Environment

NO_FILES = True
MOST_KEPT_BYTES = 128 * 1024 * 1024
MAX_TEXT_CHARS = 4 * 1024 * 1024
MAX_REASON_CHARS = 1000


class Rendering(msgspec.Struct, frozen=True, array_like=True):
    """A conversation to render. `tokens`: what special tokens are called; `now`: the time, in
    ISO 8601."""

    template: str
    messages: list[dict[str, str]]
    add_generation_prompt: bool
    tokens: dict[str, str]
    now: str


class Rendered(msgspec.Struct, frozen=True, array_like=True, tag=True):
    text: str


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The template does not take the conversation, or cannot be rendered."""

    reason: str


class _Clock:
    """Clock of the templates: the time that the server sent with the request."""

    now = datetime.min

    def strftime(self, format: str) -> str:
        return self.now.strftime(format)


_clock = _Clock()
_decoder = msgspec.msgpack.Decoder(Rendering)


def answer(request: bytes) -> bytes:
    """`Rendered` or `Refused`, of a `Rendering`; all as msgpack."""
    asked = _decoder.decode(request)
    try:
        return msgspec.msgpack.encode(Rendered(_render(asked)))
    except MemoryError:
        raise
    except (jinja2.TemplateError, SecurityError) as error:
        reason = error.message or type(error).__name__
    except UnicodeEncodeError:
        reason = "its output has half of a surrogate pair, which is not Unicode"
    except Exception as error:  # whatever the template's code runs into
        reason = f"{type(error).__name__}: {error}"
    shown = reason[:MAX_REASON_CHARS].encode("utf-8", "replace").decode()
    return msgspec.msgpack.encode(Refused(shown))


@functools.lru_cache(maxsize=4)
def _compiled(source: str) -> jinja2.Template:
    return Environment(_clock.strftime).from_string(source)


def _render(asked: Rendering) -> str:
    _clock.now = datetime.fromisoformat(asked.now)
    parts: list[str] = []
    n_chars = 0
    for part in _compiled(asked.template).generate(
        messages=asked.messages,
        tools=None,
        documents=None,
        add_generation_prompt=asked.add_generation_prompt,
        **asked.tokens,
    ):
        parts.append(part)
        n_chars += len(part)
        if n_chars > MAX_TEXT_CHARS:
            raise SecurityError(f"its output has more than {MAX_TEXT_CHARS} characters")
    return "".join(parts)


def prepare() -> None:
    """Bring in what Jinja and `strftime` need later, while files can be opened."""
    template = "{% for m in messages %}{{ strftime_now('%c') }}{{ m | tojson }}{% endfor %}"
    messages = [{"role": "user", "content": ""}]
    for text in (template, "{{ raise_exception('') }}"):
        asked = Rendering(text, messages, True, {}, datetime.now().isoformat())
        answer(msgspec.msgpack.encode(asked))
