"""Environment of chat templates: Jinja's immutable sandbox with the additions of `transformers`.

It keeps templates from Python's internals, but does not limit time and memory. For that, templates
are rendered in a limited process (`app.prompt.template_process`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.utils
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Environment(ImmutableSandboxedEnvironment):
    """Jinja environment in which templates are compiled. `strftime` formats the current time."""

    def __init__(self, strftime: Callable[[str], str]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, jinja2.ext.loopcontrols],
        )
        self.filters["tojson"] = _tojson
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = strftime
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _Namespace


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`: marks the assistant's text for training; has no effect here."""

    tags = {"generation"}  # noqa: RUF012  (declared as a set by Jinja)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Dict:
    """`dict(a=1)` and `dict.fromkeys(…)`, without the other attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace without names that begin with an underscore (Python's internals)."""

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
        raise SecurityError(
            f"a namespace cannot have {name!r}: names must not begin with an underscore"
        )


def _raise(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as in `transformers`: unlike Jinja's filter, it escapes no HTML or Unicode."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
