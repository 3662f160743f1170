"""Where chat templates run: Jinja's immutable sandbox, with what `transformers` offers in it, and
with bounds on time and size.

A template comes with a model, so it is somebody else's code. Besides what Jinja forbids (names of
Python's insides, changing what it was given), every operation that makes text is charged for its
size before it is done. Time is asked for at each of them and between the lines of the template.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.utils
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEXT_CHARS = 4 * 1024 * 1024
"""Of the output, and of any text or list on the way to it."""
MAX_WORK_CHARS = 32 * MAX_TEXT_CHARS
"""Of all that one rendering makes."""
MAX_LISTS = 1 << 16
"""Within one value: a list that holds another twice, and so on, is small only to look at."""
PLAIN = (str, int, float, list, tuple, dict, range, datetime, jinja2.Undefined)
"""Besides None."""
MAX_EXPONENT = 16
MOST_MESSAGE_CHARS = 1000
"""Of what a template refuses a conversation with."""
TEMPLATE_FILE = "<chat template>"
MAKE_TEXT = ("join", "tojson", "string", "pprint", "urlencode", "xmlattr")
"""Filters that make a text of a list and of all that is in it."""
NUMBER = re.compile(r"\d+")
FIELD_IN_FIELD = re.compile(r"\{[^{}]*\{")
TO_BYTES = ("encode", "to_bytes")
"""Methods whose bytes have methods of their own, which nothing would be charged for."""
WORK_ON_TEXT = ("format", "replace", "wordwrap", "indent", "center", "truncate")
"""Filters that make a text of what they are given first."""
MOST_WRAPPED = 10_000
"""Characters: wrapping takes their square."""


class _Allowance(threading.local):
    """What the rendering in this thread may still use."""

    end = float("inf")
    n_chars = MAX_WORK_CHARS


_allowance = _Allowance()


@contextmanager
def bounds(seconds: float) -> Iterator[None]:
    """Templates in this thread may run for `seconds`, then `TimeoutError` is raised in them, and
    make `MAX_WORK_CHARS` of text, then `SecurityError` is."""
    _allowance.end, _allowance.n_chars = time.monotonic() + seconds, MAX_WORK_CHARS

    def on_line(frame: Any, event: str, arg: Any) -> Any:
        _check_time()
        return on_line

    def on_call(frame: Any, event: str, arg: Any) -> Any:
        return on_line if frame.f_code.co_filename == TEMPLATE_FILE else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)
        _allowance.end = float("inf")


def bounded(pieces: Iterable[str]) -> Iterator[str]:
    """The same pieces, as long as they are not too much text together."""
    n_chars = 0
    for piece in pieces:
        n_chars += len(piece)
        if n_chars > MAX_TEXT_CHARS:
            raise SecurityError(f"its output has more than {MAX_TEXT_CHARS} characters")
        yield piece


def _check_time() -> None:
    if time.monotonic() > _allowance.end:
        raise TimeoutError


def _charge(what: str, n_chars: int) -> None:
    _check_time()
    _allowance.n_chars -= n_chars
    if n_chars > MAX_TEXT_CHARS or _allowance.n_chars < 0:
        raise SecurityError(f"{what} makes too large a text")


def _length(value: Any) -> int:
    """Characters of a text, items of a list; of a number the number."""
    if isinstance(value, int | float):
        return int(min(abs(value), MAX_WORK_CHARS))
    return len(value) if isinstance(value, str | list | tuple | dict) else 1


def _weight(value: Any) -> int:
    """How many items comparing a value may look at: what is in it twice counts twice."""
    weight, left = 0, [value]
    while left and weight <= MAX_LISTS:
        items = left.pop()
        if isinstance(items, dict | list | tuple):
            weight += 1 + len(items)
            left += items.values() if isinstance(items, dict) else items
    return weight


def _is_plain(value: Any) -> bool:
    """Is it something whose size as text is known?"""
    return value is None or isinstance(value, PLAIN)


def _size(value: Any) -> int:
    """As `_length`, with all that is in a list: what it may become as text. Goes no further than
    what is too large."""
    if not isinstance(value, list | tuple | dict):
        return _length(value) if _is_plain(value) else MAX_WORK_CHARS
    n_chars, n_lists, left = 1, 0, [value]
    while left and n_chars <= MAX_TEXT_CHARS:
        items = left.pop()
        if isinstance(items, dict):
            items = [*items, *items.values()]
        if isinstance(items, list | tuple):
            n_lists += 1
            if n_lists > MAX_LISTS:
                return MAX_WORK_CHARS
            n_chars += len(items)
            for item in items:
                if isinstance(item, str):
                    n_chars += len(item)
                elif isinstance(item, dict | list | tuple):
                    left.append(item)
                elif not _is_plain(item):
                    return MAX_WORK_CHARS
    return n_chars


def _formatted_size(text: str, values: Any, nested: str) -> int:
    """At most so long is a text of `%` or `format`. `nested`: with it a width can be a value."""
    fields = text.count("%") + text.count("{")
    if nested == "{" and FIELD_IN_FIELD.search(text.replace("{{", "")):
        raise SecurityError("a format with a field inside a field")
    digits = (n.lstrip("0")[:9] or "0" for n in NUMBER.findall(text))
    widths = sum(min(int(n), MAX_WORK_CHARS) for n in digits)
    numbers = [value for value in values if isinstance(value, int)] if nested in text else []
    texts = [value for value in values if not isinstance(value, int)]
    return len(text) + widths + fields * (_size(texts) + sum(map(_size, numbers)) + 20)


def _method_size(name: str, text: str, args: list[Any]) -> int:
    """At most so long is what a method of a text gives."""
    if name in ("format", "format_map"):
        values = [v for arg in args for v in (arg.values() if isinstance(arg, dict) else [arg])]
        return _formatted_size(text, values, "{")
    if name == "replace" and len(args) >= 2:
        return len(text) + text.count(str(args[0])) * _length(args[1])
    if name == "join":
        return sum(len(text) * _length(parts) + _size(parts) for parts in args)
    if name in ("expandtabs", "translate"):
        return (len(text) + 1) * (sum(map(_size, args)) or 8)
    return len(text) + sum(map(_length, args))


def _filter_size(name: str, value: Any, args: list[Any]) -> int:
    """At most so much is what a filter gives."""
    if isinstance(value, str) and name == "replace":
        return _method_size(name, value, args)
    if isinstance(value, str) and name == "format":
        return _formatted_size(value, args, "*")
    sizes = sum(map(_size, args))
    if name == "sum" and not all(isinstance(arg, int | float | str | None) for arg in args):
        return MAX_WORK_CHARS  # of lists it copies the first part for each
    if name == "wordwrap" and len(value) > MOST_WRAPPED:
        return MAX_WORK_CHARS
    if name in ("indent", "wordwrap") and isinstance(value, str):
        n_lines = value.count("\n") + (len(value) // 8 if name == "wordwrap" else 0)
        return len(value) + (n_lines + 1) * (sizes + 4)
    if name == "join":
        return _size(value) + _length(value) * sizes
    if name in MAKE_TEXT:
        nested = name == "tojson" and not isinstance(value, str)
        return _size(value) * (1 + sizes if nested else 1)
    return _length(value) + sizes


def _bounded_filter(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    """The same filter, which is charged for what it makes before it does."""
    at = 1 if hasattr(made, "jinja_pass_arg") else 0  # it is passed the context, or its like, first

    @functools.wraps(made)
    def charged(*args: Any, **kwargs: Any) -> Any:
        args_left = list(args)
        if name == "join" and not isinstance(args[at], str):
            args_left[at] = list(args[at])
        if name in WORK_ON_TEXT and not isinstance(args[at], str):
            args_left[at] = str(_printable(args[at]))
        rest = [*args_left[at + 1 :], *kwargs.values()]
        _charge(name, _filter_size(name, args_left[at], rest))
        return made(*args_left, **kwargs)

    return charged


class _CodeGenerator(jinja2.compiler.CodeGenerator):
    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Any) -> None:  # noqa: N802 (Jinja's)
        """`a ~ b`, through `Environment.joined`."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: jinja2.nodes.Compare, frame: Any) -> None:  # noqa: N802
        """`a == b`, `a in b` and so on, both through `Environment.compared`."""
        self.write("(")
        self._visit_compared(node.expr, frame)
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: jinja2.nodes.Operand, frame: Any) -> None:  # noqa: N802
        self.write(f" {jinja2.compiler.operators[node.op]} ")
        self._visit_compared(node.expr, frame)

    def _visit_compared(self, node: jinja2.nodes.Expr, frame: Any) -> None:
        self.write("environment.compared(")
        self.visit(node, frame)
        self.write(")")


class Environment(ImmutableSandboxedEnvironment):
    """What templates are compiled in."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, jinja2.ext.loopcontrols],
            finalize=_printable,
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: _bounded_filter(name, made) for name, made in self.filters.items()}
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = _strftime_now
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _Namespace

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Joins what a macro or a block wrote."""
        text = "".join(bounded(pieces))
        _charge("the template", len(text))
        return text

    def joined(self, parts: Iterable[Any]) -> str:
        """`a ~ b ~ …`"""
        return self.concat(str(_printable(part)) for part in parts)

    @staticmethod
    def compared(value: Any) -> Any:
        """A list that holds another twice, and so on, is equal to its like only after looking at
        all of it."""
        if isinstance(value, list | tuple | dict):
            _check_time()
            if _weight(value) > MAX_LISTS:
                raise SecurityError("a comparison of too large a list")
        return value

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """`'a' * 10**9` is memory, not text: operators are held to ordinary sizes."""
        if operator == "**":
            size = MAX_WORK_CHARS if abs(right) > MAX_EXPONENT else _length(left)
        elif operator == "*":
            size = _length(left) * _length(right)
        elif operator == "%" and isinstance(left, str):
            size = _formatted_size(left, right if isinstance(right, tuple) else (right,), "*")
        else:
            size = 0 if isinstance(left, int | float) else _length(left) + _length(right)
        _charge(f"the operator {operator}", size)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Calls a function, a macro or a method."""
        method = getattr(__obj, "__wrapped__", __obj)  # of str.format, which the sandbox wraps
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if name in TO_BYTES and isinstance(owner, str | int):
            raise SecurityError(f"{name} makes bytes, which no template needs")
        if isinstance(owner, str):
            if name == "join" and args and not isinstance(args[0], str | list | tuple | dict):
                args = (list(args[0]), *args[1:])
            _charge(name, _method_size(name, owner, [*args, *kwargs.values()]))
        return super().call(__context, __obj, *args, **kwargs)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  (declared as a set by Jinja)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Dict:
    """`dict(a=1)` and `dict.fromkeys(…)`, and nothing else of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's, without names that begin with an underscore: they would reach Python's insides."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that a key may be called `self`
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no {name!r}: names may not begin with an underscore")


def _printable(value: Any) -> Any:
    """What is about to become text."""
    if not isinstance(value, str):
        _charge("a list", _size(value) if isinstance(value, list | tuple | dict) else 20)
        if not _is_plain(value) and not hasattr(value, "__html__"):
            raise SecurityError(f"a {type(value).__name__} is no text")
    return value


def _raise(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(_printable(message))[:MOST_MESSAGE_CHARS])


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


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
