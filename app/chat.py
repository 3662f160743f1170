"""Chat templates: a model's Jinja source, rendered as the `transformers` library renders it.

A template comes with a model, so it is somebody else's code. It runs in Jinja's immutable sandbox
with a bound on its size, its output and its time; requests cannot bring templates of their own.
The time bound acts between lines of the template, so it ends loops, not a single huge operation.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.protocol import Message
from gpu import InvalidRequest

MAX_TEMPLATE_CHARS = 256 * 1024
MAX_OUTPUT_CHARS = 4 * 1024 * 1024
MAX_SECONDS = 2.0
MAX_EXPONENT = 16
TEMPLATE_FILE = "<chat template>"
NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Code points that are in no text; used as marks that survive rendering."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  (declared as a set by Jinja)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """`'a' * 10**9` is memory, not text: both operators are held to ordinary sizes."""
        size = 1
        for side in (left, right):
            size *= len(side) if isinstance(side, str | list | tuple) else abs(int(side))
        if size > MAX_OUTPUT_CHARS or (operator == "**" and abs(right) > MAX_EXPONENT):
            raise SecurityError(f"the operands of {operator} are too large")
        return super().call_binop(context, operator, left, right)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in `transformers`: unlike Jinja's own, it escapes neither HTML nor non-ASCII."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@functools.lru_cache(maxsize=4)
def _compile(source: str) -> jinja2.Template:
    if len(source) > MAX_TEMPLATE_CHARS:
        raise InvalidRequest(
            f"the model's chat template has {len(source)} characters, but {MAX_TEMPLATE_CHARS} "
            "are the most that is accepted; use completion instead of chat",
            "messages",
        )
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.pop("lipsum")
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    code = environment.compile(source, filename=TEMPLATE_FILE)
    return jinja2.Template.from_code(environment, code, environment.globals)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Let template lines of this thread run for `seconds`, then raise `TimeoutError` in them."""
    end = time.monotonic() + seconds

    def on_line(frame: Any, event: str, arg: Any) -> Any:
        if time.monotonic() > end:
            raise TimeoutError
        return on_line

    def on_call(frame: Any, event: str, arg: Any) -> Any:
        return on_line if frame.f_code.co_filename == TEMPLATE_FILE else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)


def _bounded(pieces: Iterator[str]) -> str:
    kept: list[str] = []
    left = MAX_OUTPUT_CHARS
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise SecurityError(f"its output has more than {MAX_OUTPUT_CHARS} characters")
        kept.append(piece)
    return "".join(kept)


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
    variables = {
        "messages": turns,
        "tools": None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt and not continue_final,
        **{name: token for name, token in named.items() if token is not None},
    }
    text = _guarded(lambda: _bounded(_compile(template).generate(**variables)))
    return _cut(text, cut) if cut else text


def _guarded(work: Callable[[], str]) -> str:
    try:
        with _deadline(MAX_SECONDS):
            return work()
    except InvalidRequest:
        raise
    except TimeoutError:
        reason = f"it takes longer than {MAX_SECONDS:g} s"
    except (jinja2.TemplateError, SecurityError) as error:
        reason = error.message or type(error).__name__
    except Exception as error:  # whatever the template's code runs into
        reason = f"{type(error).__name__}: {error}"
    raise InvalidRequest(
        f"the model's chat template does not take these messages: {reason}", "messages"
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
