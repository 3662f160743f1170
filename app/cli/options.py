"""Options that commands share."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click

from app.config import VALUE_OF_BARE_FLAG, SettingSpec, setting_specs

ENGINE_SETTINGS = (
    "model", "revision", "dtype", "kv_dtype", "backend", "adapter", "pipeline_parallel_size",
    "lora", "expert_slots", "activations", "context", "kv_memory", "weight_cache", "draft",
)  # fmt: skip
"""Settings of commands that run a model."""


class _Repeated(click.types.StringParamType):
    """Values of a setting that may be repeated. In the environment they are separated by spaces; a
    value with spaces is quoted, as in a shell. A backslash is itself: Windows' paths have it."""

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        words = shlex.shlex(rv, posix=True)
        words.whitespace_split, words.escape, words.commenters = True, "", ""
        try:
            return list(words)
        except ValueError:
            self.fail(f"a quotation mark has no other one in {rv!r}")


class FiniteRange(click.FloatRange):
    """Range of numbers; in click's own lies NaN, which is neither below nor above a limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def _click_type(spec: SettingSpec) -> Any:
    if spec.type is bool:
        return bool
    if get_origin(spec.type) is tuple:
        return _Repeated()
    kinds = [kind for kind in get_args(spec.type) if kind is not type(None)]
    for kind in (spec.type, *kinds):
        if get_origin(kind) is Literal:
            return click.Choice(get_args(kind))
    if spec.range is not None:
        return click.IntRange(*spec.range)
    if spec.type is Path or Path in kinds:
        return click.Path(path_type=Path)
    return str


def settings_options(names: tuple[str, ...] | None = None) -> Callable[[Any], Any]:
    """Return a decorator that adds the options of the settings in `names`; all if None."""

    def decorate(function: Any) -> Any:
        for spec in reversed(setting_specs()):
            if names is None or spec.name in names:
                multiple = get_origin(spec.type) is tuple
                function = click.option(
                    f"{spec.flag}/{spec.no_flag}" if spec.no_flag else spec.flag,
                    type=_click_type(spec),
                    default=spec.default,
                    multiple=multiple,
                    **_bare_flag(spec),
                    envvar=spec.env,
                    show_envvar=True,
                    show_default=spec.default not in (None, ()),
                    help=spec.help,
                )(function)
        return function

    return decorate


def _bare_flag(spec: SettingSpec) -> dict[str, Any]:
    """Return the parameters of an option that may be given without a value."""
    value = VALUE_OF_BARE_FLAG.get(spec.name)
    return {} if value is None else {"is_flag": False, "flag_value": value}


span_option = click.option(
    "--span", type=click.IntRange(8), default=512, show_default=True,
    help="Tokens per span of text.",
)  # fmt: skip
