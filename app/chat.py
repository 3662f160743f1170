"""Chat templates: a model's Jinja source, rendered as the `transformers` library renders it.

A template comes with a model, so it is somebody else's code. It runs in `app.sandbox` with a bound
on its size, its output and its time; requests cannot bring templates of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import jinja2
from jinja2.exceptions import SecurityError

from app.protocol import Message
from app.sandbox import TEMPLATE_FILE, Environment, bounded, bounds
from gpu import InvalidRequest

MAX_TEMPLATE_CHARS = 256 * 1024
MAX_SECONDS = 2.0
NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Code points that are in no text; used as marks that survive rendering."""


@functools.lru_cache(maxsize=4)
def _compile(source: str) -> jinja2.Template:
    if len(source) > MAX_TEMPLATE_CHARS:
        raise InvalidRequest(
            f"the model's chat template has {len(source)} characters, but {MAX_TEMPLATE_CHARS} "
            "are the most that is accepted; use completion instead of chat",
            "messages",
        )
    environment = Environment()
    code = environment.compile(source, filename=TEMPLATE_FILE)
    return jinja2.Template.from_code(environment, code, environment.globals)


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
    text = _guarded(lambda: "".join(bounded(_compile(template).generate(**variables))))
    return _cut(text, cut) if cut else text


def _guarded(work: Callable[[], str]) -> str:
    try:
        with bounds(MAX_SECONDS):
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
