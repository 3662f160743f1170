"""Reading of a tokenizer from a model folder: tokenizer.json, or SentencePiece's tokenizer.model,
with tokenizer_config.json and its older companions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import tokenizers

from gpu.errors import ModelError
from gpu.files.json_object import JsonObject
from gpu.files.regular_file import is_there, open_regular, read_regular
from gpu.text.added_tokens import add_tokens, mark_special
from gpu.text.model_proto import read_model
from gpu.text.sentence_piece import make_backend

MAX_TOKENIZER_BYTES = 100 * 1024 * 1024
"""Three times the largest real tokenizer.json."""
MAX_TEMPLATE_BYTES = 1 << 20
"""The longest real chat templates have 20 KB."""


class TokenizerFiles(NamedTuple):
    """Content of a folder's tokenizer files.

    where          file of the tokenizer itself
    config         tokenizer_config.json, with names from older files
    chat_template  the default template; None if there is none
    tool_template  the template for conversations with tools, if it has one of its own
    """

    backend: tokenizers.Tokenizer
    config: JsonObject
    where: str
    chat_template: str | None
    tool_template: str | None


def read_folder(folder: Path, path: Path) -> TokenizerFiles:
    """Read the tokenizer at `path`, or tokenizer.model if that is missing, with the files beside
    it.

    Raises ModelError for files that are missing, damaged or unsupported.
    """
    for file in (path, folder / "tokenizer.model"):
        if is_there(file):
            open_regular(file).close()
    config = JsonObject.read_optional(folder / "tokenizer_config.json")
    older = JsonObject.read_optional(folder / "special_tokens_map.json")
    tokens = {k: older.get(k) for k in ("bos_token", "eos_token") if k not in config.values}
    named = JsonObject(config.where, config.values | tokens)
    if path.suffix == ".model" or not path.is_file():
        path = path if path.is_file() else folder / "tokenizer.model"
        backend, named = _of_sentence_piece(path, named, older)
    else:
        backend = _of_json(path)
    add_tokens(backend, folder, config, older)
    return TokenizerFiles(backend, named, str(path), *_chat_templates(folder, config))


@contextmanager
def panic_raises(failure: Exception) -> Iterator[None]:
    """Raise `failure` if `tokenizers` panics.

    The library panics at tables with invalid references. Python sees that as an exception outside
    `Exception`, which would end the thread.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise failure from None


def _of_json(path: Path) -> tokenizers.Tokenizer:
    n_bytes = path.stat().st_size
    if n_bytes > MAX_TOKENIZER_BYTES:
        raise ModelError(
            f"{path}: has {n_bytes:,} bytes; expected a tokenizer of at most "
            f"{MAX_TOKENIZER_BYTES:,} bytes"
        )
    try:
        with panic_raises(ValueError("it is damaged")):
            return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelError(f"{path}: not a usable tokenizer: {error}") from None


def _of_sentence_piece(
    path: Path, config: JsonObject, names: JsonObject
) -> tuple[tokenizers.Tokenizer, JsonObject]:
    """Return the tokenizer of a tokenizer.model, and its config completed from the model.

    Of the config, `legacy: false` and `add_prefix_space` are used. Texts begin with the model's
    beginning-of-sequence token unless `add_bos_token` is false, as in the `transformers` classes
    for such folders.
    """
    if not path.is_file():
        raise ModelError(
            f"{path.parent / 'tokenizer.json'}: not found, nor {path.name}; expected one of these "
            "files: download it with the model"
        )
    pieces = read_model(path)
    if "add_prefix_space" in config:
        pieces = replace(pieces, add_prefix=config.boolean("add_prefix_space", True))
    first_only = not config.boolean("legacy", True)
    backend = make_backend(pieces, str(path), prefix_first_only=first_only)
    mark_special(backend, config, names)
    control = (pieces.control(pieces.bos_id), pieces.control(pieces.eos_id))
    from_model = dict(zip(("bos_token", "eos_token"), control, strict=True))
    values = from_model | {key: value for key, value in config.values.items() if value is not None}
    values.setdefault("add_bos_token", values["bos_token"] is not None)
    return backend, JsonObject(config.where, values)


def _chat_templates(folder: Path, config: JsonObject) -> tuple[str | None, str | None]:
    """Return the default template and that for tools: `chat_template.jinja`, or of the config's
    `chat_template`, if that is a list, those named `default` and `tool_use`."""
    path = folder / "chat_template.jinja"
    if is_there(path):
        try:
            return read_regular(path, MAX_TEMPLATE_BYTES).decode("utf-8"), None
        except ValueError as error:
            raise ModelError(f"{path}: cannot be read ({error})") from None
    value = config.get("chat_template")
    if value is None or isinstance(value, str):
        return value, None
    expected = "a template, or a list of objects with name and template"
    if not isinstance(value, list):
        raise config.error("chat_template", expected)
    named: dict[str, str] = {}
    for entry in value:
        name, template = (
            (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(template, str):
            raise config.error("chat_template", expected)
        named[name] = template
    return named.get("default", next(iter(named.values()), None)), named.get("tool_use")
