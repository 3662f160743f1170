"""Reading of a tokenizer from a model folder: tokenizer.json, or SentencePiece's tokenizer.model,
with tokenizer_config.json and its older companions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from gpu.errors import ModelError
from gpu.files.json_object import JsonObject
from gpu.files.regular_file import expect_inside, is_there, open_regular, read_regular
from gpu.text.added_tokens import SpecialTokens, add_tokens, begin_with, read_special_tokens
from gpu.text.model_proto import read_model
from gpu.text.sentence_piece import make_backend

MAX_TOKENIZER_BYTES = 100 * 1024 * 1024
"""Three times the largest real tokenizer.json."""
MAX_TEMPLATE_BYTES = 1 << 20
"""The longest real chat templates have 20 KB."""
TEMPLATE, ADDITIONAL_TEMPLATES = "chat_template.jinja", "additional_chat_templates"
MAX_TEMPLATES = 64
"""Real models have three at most: default, tool_use, rag."""


class TokenizerFiles(NamedTuple):
    """Content of a folder's tokenizer files, or of a GGUF file's tokenizer.

    backend         with all added tokens; its post-processor begins texts
    special_tokens  texts of the named ones, such as "bos_token"
    where           file of the tokenizer itself
    chat_template   the default template; None if there is none
    tool_template   the template for conversations with tools, if it has one of its own
    """

    backend: tokenizers.Tokenizer
    special_tokens: dict[str, str]
    where: str
    chat_template: str | None
    tool_template: str | None


def read_folder(folder: Path, path: Path) -> TokenizerFiles:
    """Read the tokenizer at `path`, or tokenizer.model if that is missing, with the files next to
    it.

    Texts begin as the post-processor of tokenizer.json says, whatever `add_bos_token` says, as in
    `transformers` 5. Raises ModelError for files that are missing, damaged or unsupported.
    """
    for file in (path, folder / "tokenizer.model"):
        if is_there(file):
            open_regular(file).close()
    config = JsonObject.read_optional(folder / "tokenizer_config.json")
    older = JsonObject.read_optional(folder / "special_tokens_map.json")
    special = read_special_tokens(config, older)
    if path.suffix == ".model" or not path.is_file():
        path = path if path.is_file() else folder / "tokenizer.model"
        backend, special = _of_sentence_piece(folder, path, config, special)
    else:
        backend = _of_json(path)
        add_tokens(backend, folder, config, special)
    templates = choose_templates(_chat_templates(folder, config))
    return TokenizerFiles(backend, special.texts, str(path), *templates)


def choose_templates(named: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the default template of those of a model, and that for conversations with tools if it
    has one of its own."""
    return named.get("default", next(iter(named.values()), None)), named.get("tool_use")


@contextmanager
def failure_raises(failure: Exception) -> Iterator[None]:
    """Raise `failure` if `tokenizers` fails or panics.

    The library fails with a plain `Exception`, whose reason is added: for example at a text that
    needs the unknown token where the vocabulary has none. It panics at tables with invalid
    references: Python sees that as an exception outside `Exception`, which would end the thread.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is Exception:
            raise type(failure)(f"{failure} ({error})") from None
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
        with failure_raises(ValueError("it is damaged")):
            return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelError(f"{path}: not a usable tokenizer: {error}") from None


def _of_sentence_piece(
    folder: Path, path: Path, config: JsonObject, special: SpecialTokens
) -> tuple[tokenizers.Tokenizer, SpecialTokens]:
    """Return the tokenizer of a tokenizer.model, and `special` completed from the model.

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
    special = SpecialTokens(pieces.named | special.named, special.others)
    add_tokens(backend, folder, config, special, raw=pieces.add_prefix)
    begin = special.texts.get("bos_token")
    if begin is not None and config.boolean("add_bos_token", True):
        begin_with(backend, begin)
    return backend, special


def _chat_templates(folder: Path, config: JsonObject) -> dict[str, str]:
    """Return the chat templates by name: those of `chat_template.jinja` and of the files in
    `additional_chat_templates`, else those of the config's `chat_template`."""
    more = folder / ADDITIONAL_TEMPLATES
    expect_inside(more)
    files = {path.stem: path for path in sorted(more.glob("*.jinja"))[:MAX_TEMPLATES]}
    if is_there(folder / TEMPLATE):
        files = {"default": folder / TEMPLATE} | files
    if files:
        return {name: _template(path) for name, path in files.items()}
    value = config.get("chat_template")
    if value is None or isinstance(value, str):
        return {} if value is None else {"default": value}
    named: Any = value
    if isinstance(value, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in value
    ):
        named = {entry["name"]: entry.get("template") for entry in value}
    if not isinstance(named, dict) or not all(isinstance(text, str) for text in named.values()):
        raise config.error(
            "chat_template",
            "a template, an object of templates by their names, or a list of objects with name and "
            "template",
        )
    return named


def _template(path: Path) -> str:
    try:
        return read_regular(path, MAX_TEMPLATE_BYTES).decode("utf-8")
    except ValueError as error:
        raise ModelError(f"{path}: cannot be read ({error})") from None
